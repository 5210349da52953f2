package prefetch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// Client reads the files.
type Client interface {
	Self() metadata.NodeID
	Getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error)
	// Where returns the nodes that have all of a file; none if it is read in parts, or through.
	Where(a *metadata.Attr) []metadata.NodeID
	BeginRead(n int64, among []metadata.NodeID) sources.Read
	ReadMany(ctx context.Context, id metadata.NodeID, rs []datapath.RangeRead, buf []byte) error
	// Neighbours returns the wanted files that ReadMany of this node reads together with an overflow file.
	Neighbours(ino metadata.Ino, wanted func(metadata.Ino) bool) []metadata.Ino
	Read(ctx context.Context, a metadata.Attr, p []byte, off int64, o stripe.ReadOpts) (int, error)
	// Advise has the kernel read a file of this node's disk ahead.
	Advise(ctx context.Context, a *metadata.Attr)
}

// Pages is the kernel's page cache behind one FUSE connection.
type Pages interface {
	// Mark changes when pages are dropped: bytes read before are not stored afterwards.
	Mark() uint64
	// Store puts all bytes of a file into the page cache, which the daemon read after mark. It
	// reports false if the kernel does not know the inode.
	Store(ino metadata.Ino, b []byte, mark uint64) bool
	// Drop drops the pages of a file. It waits for reads of the file that are being answered.
	Drop(ino metadata.Ino)
	// Direct reports whether the kernel reads this node's files by itself.
	Direct() bool
}

// EngineConfig configures an Engine.
type EngineConfig struct {
	Client Client
	Files  accessplan.Files // of the dataset
	// Plan is the dataset's plan, nil if there is none, and a channel that is closed when it changes.
	Plan func() (*accessplan.Plan, <-chan struct{})
	// Positions returns the positions that ranks of this node have reported; nil: none.
	Positions func() []accessplan.Position
	Budget    int64 // bytes fetched and not read yet; 0 switches prefetch off
	Log       *logrus.Entry
	Now       func() time.Time
}

const (
	largest    = batchBytes            // of a file; larger ones are left to the kernel's read-ahead
	batchBytes = 512 << 10             // of one request
	batchFiles = 64                    // of one request
	requests   = 32                    // at once, besides the window of bytes
	mostWants  = 256                   // divided into batches together
	tick       = 50 * time.Millisecond // between looks at positions and at files that were not staged
	patience   = 10 * time.Second      // for one request
	seenQueue  = 4096                  // reads that wait for the tracker: more are not noted
	mostRead   = 128                   // files kept although their read has begun
	mostWait   = time.Second           // for a file under way
	uncovered  = 4                     // one in so many files is dropped when a plan begins
	moveAfter  = 8                     // reads in a row through another connection, until it is the one to fill
)

// Engine prefetches one dataset on this node.
type Engine struct {
	cfg   EngineConfig
	seen  chan metadata.Ino
	pages atomic.Pointer[Pages] // of the connection that is read from
	away  atomic.Int32          // reads in a row through another one
	moved atomic.Bool           // pages has changed: what it held is not read any more

	mu      sync.Mutex
	kept    map[metadata.Ino]kept    // guarded by mu
	flights map[metadata.Ino]*flight // guarded by mu; files under way
	begun   []metadata.Ino           // guarded by mu; files given up while they are read, oldest first
	state   accessplan.State         // guarded by mu
}

// kept is a file in memory.
type kept struct {
	b     []byte
	pages Pages
	mark  uint64
}

// part is the bytes of the file at off, up to n; none if its pages were dropped since.
func (k *kept) part(off, n int64) []byte {
	if off >= int64(len(k.b)) || k.pages.Mark() != k.mark {
		return nil
	}
	end := min(off+n, int64(len(k.b)))
	return k.b[off:end:end]
}

// NewEngine makes an engine; Run starts it.
func NewEngine(cfg EngineConfig) *Engine {
	if cfg.Positions == nil {
		cfg.Positions = func() []accessplan.Position { return nil }
	}
	e := &Engine{cfg: cfg, seen: make(chan metadata.Ino, seenQueue), kept: make(map[metadata.Ino]kept), flights: make(map[metadata.Ino]*flight)}
	e.state.Phase = accessplan.Waiting
	return e
}

// Read records a read of n bytes of a file through a connection, and returns them if they are kept in
// memory, or under way, which it waits for. The caller must not change them.
func (e *Engine) Read(ctx context.Context, p Pages, ino metadata.Ino, off, n int64) []byte {
	e.readFrom(p)
	b, f := e.take(ino, off, n)
	if off == 0 {
		select {
		case e.seen <- ino:
		default: // the tracker is busy; it misses a sample
		}
	}
	if f != nil && f.wait(ctx, e.cfg.Now()) {
		b = f.part(off, n)
		e.take(ino, off, n)
	}
	return b
}

// readFrom notes the connection of a read. When readers move to another one, such as a kernel view that was mounted
// over a cover, their pages stay behind.
func (e *Engine) readFrom(p Pages) {
	switch was := e.pages.Load(); {
	case was == nil:
		e.pages.Store(&p)
	case *was == p:
		if e.away.Load() != 0 {
			e.away.Store(0)
		}
	case e.away.Add(1) == moveAfter:
		e.pages.Store(&p)
		e.moved.Store(true)
	}
}

// take returns bytes of a kept file, which is dropped with its last byte, or the file's flight.
func (e *Engine) take(ino metadata.Ino, off, n int64) ([]byte, *flight) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k, ok := e.kept[ino]
	if !ok {
		f := e.flights[ino]
		if f != nil {
			f.met = true
		}
		return nil, f
	}
	b := k.part(off, n)
	if b == nil || off+int64(len(b)) == int64(len(k.b)) {
		delete(e.kept, ino)
	}
	return b, nil
}

// drop gives up kept files. Some are being read in parts, so the last ones stay for a while.
func (e *Engine) drop(inos []metadata.Ino) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ino := range inos {
		if _, ok := e.kept[ino]; ok {
			e.begun = append(e.begun, ino)
		}
	}
	for len(e.begun) > mostRead {
		delete(e.kept, e.begun[0])
		e.begun = e.begun[1:]
	}
}

// State says how the plan is followed here.
func (e *Engine) State() accessplan.State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

func (e *Engine) setState(s accessplan.State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state = s
}

// Run follows the plans of the dataset until ctx ends.
func (e *Engine) Run(ctx context.Context) {
	for ctx.Err() == nil {
		plan, changed := e.cfg.Plan()
		if plan == nil || e.cfg.Budget <= 0 {
			s := accessplan.State{Phase: accessplan.Waiting}
			if e.cfg.Budget <= 0 {
				s = accessplan.State{Phase: accessplan.Off, Reason: "ahead=0"}
			}
			e.setState(s)
			e.idle(ctx, changed)
			continue
		}
		f, err := e.begin(plan, changed)
		if err != nil {
			e.cfg.Log.WithError(err).Warn("the access plan does not fit the dataset: nothing is prefetched; reads are not affected")
			e.setState(accessplan.State{Phase: accessplan.Stale, Reason: err.Error()})
			e.idle(ctx, changed)
			continue
		}
		f.run(ctx)
	}
}

// idle waits for another plan. Reads are not noted meanwhile.
func (e *Engine) idle(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-changed:
			return
		case <-ctx.Done():
			return
		case <-e.seen:
		}
	}
}

// planned is a plan as an Order.
type planned struct {
	plan accessplan.Plan
	n    int
}

func (p planned) Files() int  { return p.n }
func (p planned) Ranks() int  { return p.plan.Ranks }
func (p planned) Epochs() int { return p.plan.Epochs }

func (p planned) Epoch(epoch, ranks int) (Epoch, error) {
	q := p.plan
	q.Ranks = ranks
	return q.Epoch(epoch, p.n)
}

// begin prepares to follow a plan.
func (e *Engine) begin(plan *accessplan.Plan, changed <-chan struct{}) (*follower, error) {
	numbers, err := accessplan.Number(e.cfg.Files, plan)
	if err != nil {
		return nil, err
	}
	if numbers.Len() == 0 {
		return nil, fmt.Errorf("no file of the dataset has a number: is root=%s right?", plan.Root)
	}
	order := planned{*plan, numbers.Len()}
	if _, err := order.Epoch(0, max(plan.Ranks, 1)); err != nil {
		return nil, err
	}
	e.uncover(numbers)
	f := &follower{e: e, plan: plan, numbers: numbers, changed: changed, results: make(chan *batch, requests)}
	f.t = New(order, Config{Budget: e.cfg.Budget, Mean: e.mean(numbers), Neighbours: f.neighbours, Overflows: f.overflows})
	return f, nil
}

// uncover drops the pages of some files, if any were read before there was a plan, so that enough reads are seen to find
// out where the ranks are.
func (e *Engine) uncover(n *accessplan.Numbering) {
	pages := e.pages.Load()
	if pages == nil {
		return
	}
	for i := 0; i < n.Len(); i += uncovered {
		if ino := n.Ino(i); ino != 0 {
			(*pages).Drop(ino)
		}
	}
}

// mean estimates the mean size of a file, in bytes, from a sample.
func (e *Engine) mean(n *accessplan.Numbering) int64 {
	const samples = 64
	var bytes, files int64
	for i := 0; i < n.Len(); i += max(n.Len()/samples, 1) {
		if a, err := e.cfg.Client.Getattr(context.Background(), n.Ino(i)); n.Ino(i) != 0 && err == nil {
			bytes += a.Size
			files++
		}
	}
	return bytes / max(files, 1)
}
