package writeback

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// maxBuffers bounds the buffers of all files together.
	maxBuffers = 64
	// keptBuffers is how many unused buffers are kept for reuse.
	keptBuffers = 8
	// maxAge is about how long buffered bytes wait for more.
	maxAge = 500 * time.Millisecond
	// closeTime bounds how long Close waits for buffered bytes.
	closeTime = 5 * time.Second
)

// Memory bounds the bytes that a client buffers.
const Memory = maxBuffers * bufferSize

// Client gives a Pool access to the client whose files it buffers.
type Client interface {
	// Flush drains a file's buffer and publishes the size to its home. It reports whether that must be repeated: the
	// home is away for a moment, or another node's append in flight hides an append of this node.
	Flush(ctx context.Context, f File) (again bool)
	// Free returns how many bytes a node has free.
	Free(ctx context.Context, id metadata.NodeID) (int64, error)
	// Nodes returns how many nodes the job has.
	Nodes() int
}

// Pool holds the buffers of all files of a client.
type Pool struct {
	client Client
	log    *logrus.Entry
	now    func() time.Time
	space  freeSpace

	slots   chan struct{} // one for each buffer in use
	changed wait.Signal   // set when bytes were buffered
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	buffered, batches atomic.Int64

	mu     sync.Mutex
	free   [][]byte             // under mu: for reuse
	files  map[*Buffer]flushing // under mu: those with bytes that have not arrived, or a change to report to the home
	closed bool                 // under mu: all writes go through
}

// flushing is the flush state of a file of a Pool.
type flushing int

const (
	waiting      flushing = iota // will be flushed soon
	flushed                      // is being flushed
	flushedAgain                 // is being flushed, and has changed meanwhile
)

// NewPool returns a Pool for client.
func NewPool(client Client, log *logrus.Entry, now func() time.Time) *Pool {
	p := &Pool{
		client: client, log: log, now: now,
		slots: make(chan struct{}, maxBuffers), changed: wait.NewSignal(), files: make(map[*Buffer]flushing),
	}
	p.space.init()
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.flushOld)
	return p
}

// Close sends the buffered bytes as far as the nodes answer, and stops the Pool. Later writes go through.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if err := p.Drain(ctx); err != nil {
		p.log.WithError(err).Error("writes to files that were not closed may be lost")
	}
	p.cancel()
	p.wg.Wait()
}

// Drain waits until all bytes buffered now have arrived or have failed.
func (p *Pool) Drain(ctx context.Context) error {
	return wait.Each(ctx, p.list(), func(ctx context.Context, b *Buffer) error { return b.Drain(ctx) })
}

// Stats counts the work of a Pool.
type Stats struct {
	Buffered int64 // bytes
	Batches  int64
	Buffers  int64 // in use
}

// Stats returns the counters of the Pool since its start.
func (p *Pool) Stats() Stats {
	return Stats{Buffered: p.buffered.Load(), Batches: p.batches.Load(), Buffers: int64(len(p.slots))}
}

// get returns empty memory for a batch, or nil if all of it is in use.
func (p *Pool) get() []byte {
	select {
	case p.slots <- struct{}{}:
	default:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return make([]byte, 0, bufferSize)
}

// put takes memory back. It is kept because allocating it costs as much as filling it.
func (p *Pool) put(b []byte) {
	p.mu.Lock()
	if len(p.free) < keptBuffers {
		p.free = append(p.free, b[:0])
	}
	p.mu.Unlock()
	<-p.slots
}

// add schedules a flush of b; it returns false if the Pool is closed. For buffered bytes b.mu is held, so that a caller
// that finds b here finds its bytes.
func (p *Pool) add(b *Buffer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	switch state, had := p.files[b]; {
	case !had:
		p.files[b] = waiting
		p.changed.Set()
	case state == flushed:
		p.files[b] = flushedAgain
	}
	return true
}

// FlushSoon schedules a flush of the file: its home must learn of a change that was not buffered.
func (b *Buffer) FlushSoon() { b.pool.add(b) }

// Closed cancels FlushSoon: the last close has flushed the file, or it will not be flushed.
func (b *Buffer) Closed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	if b.arrived() && b.pool.files[b] == waiting {
		delete(b.pool.files, b)
	}
}

func (p *Pool) pending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.files) > 0
}

func (p *Pool) list() []*Buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.files))
}

// flushOld flushes files whose buffered bytes have waited long enough, until the Pool is closed. No file waits for the
// nodes of another file.
func (p *Pool) flushOld() {
	wait.Batches(p.ctx, p.changed, maxAge, p.pending, func() time.Duration {
		for _, b := range p.takeOld() {
			p.wg.Go(func() { p.endFlush(b, p.client.Flush(p.ctx, b.file)) })
		}
		return maxAge
	})
}

// takeOld takes the files that are not being flushed.
func (p *Pool) takeOld() (all []*Buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for b, state := range p.files {
		if state == waiting {
			p.files[b] = flushed
			all = append(all, b)
		}
	}
	return all
}

// endFlush removes b, unless it has bytes that have not arrived or must be flushed again.
func (p *Pool) endFlush(b *Buffer, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	again = again || p.files[b] == flushedAgain
	if p.files[b] = waiting; b.arrived() && !again {
		delete(p.files, b)
	}
}
