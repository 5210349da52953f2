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
	// Where returns the nodes that have all of a file; none if it is striped, or read through from the source.
	Where(a *metadata.Attr) []metadata.NodeID
	BeginRead(n int64, among []metadata.NodeID) sources.Read
	ReadMany(ctx context.Context, id metadata.NodeID, rs []datapath.RangeRead, buf []byte) error
	// Neighbours returns the wanted files that ReadMany of this node reads together with an overflow file.
	Neighbours(ino metadata.Ino, wanted func(metadata.Ino) bool) []metadata.Ino
	Read(ctx context.Context, a metadata.Attr, p []byte, off int64, o stripe.ReadOpts) (int, error)
	// Advise makes the kernel read a file of this node's disk ahead.
	Advise(ctx context.Context, a *metadata.Attr)
}

// Pages is the kernel's page cache behind one FUSE connection.
type Pages interface {
	// Mark changes when pages are dropped: bytes read before a change are not stored after it.
	Mark() uint64
	// Store puts whole pages of a file at off, which the daemon read after mark, into the page cache. It reports false
	// if the kernel does not know the inode.
	Store(ino metadata.Ino, off int64, b []byte, mark uint64) bool
	// Drop drops the pages of n bytes of a file; 0: to its end. It waits for reads of them that are being answered.
	Drop(ino metadata.Ino, off, n int64)
	// Direct reports whether the kernel reads this node's files by itself.
	Direct() bool
}

// EngineConfig configures an Engine.
type EngineConfig struct {
	Client Client
	Files  accessplan.Files // of the dataset
	// Plan returns the dataset's plan, nil if there is none, and a channel that is closed when it changes.
	Plan func() (*accessplan.Plan, <-chan struct{})
	// Positions returns the positions that ranks of this node have reported; if it is nil, there are none.
	Positions func() []accessplan.Position
	Filling   func() bool // files are still being staged; nil: never
	Budget    int64       // bytes fetched but not read yet; 0 switches prefetch off
	Log       *logrus.Entry
	Now       func() time.Time
}

const (
	batchBytes = 512 << 10             // of one request; larger units are fetched one by one
	mostWhole  = 8 << 20               // largest unit that is fetched whole; larger ones are streams
	wholeShare = 32                    // such a unit takes at most 1/wholeShare of the budget
	batchFiles = 64                    // of one request
	requests   = 32                    // in flight, besides the window of bytes
	mostWants  = 256                   // divided into batches at once
	tick       = 50 * time.Millisecond // interval of checks for positions and for files not staged before
	patience   = 10 * time.Second      // for one request
	seenQueue  = 4096                  // reads queued for the tracker: more are not recorded
	mostRead   = 128                   // files kept although their read has begun,
	readShare  = 8                     // and 1/readShare of the budget, which they may take
	mostWait   = time.Second           // for a file in flight
	uncovered  = 4                     // one file in this many is dropped when a plan begins
	moveAfter  = 8                     // consecutive reads through another connection after which that one is filled
)

// Engine prefetches one dataset on this node.
type Engine struct {
	cfg   EngineConfig
	seen  chan sight
	pages atomic.Pointer[Pages] // of the connection that readers use
	away  atomic.Int32          // consecutive reads through another connection
	moved atomic.Bool           // pages has changed: readers no longer use what it held
	units atomic.Pointer[accessplan.Numbering]

	mu      sync.Mutex
	kept    map[place]*kept   // guarded by mu
	flights map[place]*flight // guarded by mu; bytes in flight
	begun   []place           // guarded by mu; given up while being read, oldest first
	state   accessplan.State  // guarded by mu
}

// sight is a read, or an open of a file that the kernel reads by itself.
type sight struct {
	ino    metadata.Ino
	off, n int64
	opened bool
}

// NewEngine makes an engine; Run starts it.
func NewEngine(cfg EngineConfig) *Engine {
	if cfg.Positions == nil {
		cfg.Positions = func() []accessplan.Position { return nil }
	}
	e := &Engine{cfg: cfg, seen: make(chan sight, seenQueue), kept: make(map[place]*kept), flights: make(map[place]*flight)}
	e.state.Phase = accessplan.Waiting
	return e
}

// Read records a read of n bytes of a file through a connection. It returns the bytes if they are kept in memory, or
// after a wait if they are in flight, else nil. The caller must not change them.
func (e *Engine) Read(ctx context.Context, p Pages, ino metadata.Ino, off, n int64) []byte {
	e.readFrom(p)
	b, end := e.piece(ctx, sight{ino: ino, off: off, n: n}, true)
	if b == nil || end || int64(len(b)) == n {
		return b
	}
	all := append(make([]byte, 0, n), b...) // the kernel reads across pieces
	for int64(len(all)) < n && !end {
		k := int64(len(all))
		if b, end = e.piece(ctx, sight{ino: ino, off: off + k, n: n - k}, false); b == nil {
			return nil
		}
		all = append(all, b...)
	}
	return all
}

// Opened records an open of a file that the kernel reads by itself.
func (e *Engine) Opened(ino metadata.Ino) {
	select {
	case e.seen <- sight{ino: ino, opened: true}:
	default: // the tracker is busy; it misses a sample
	}
}

// readFrom records the connection of a read. When readers move to another connection, such as a kernel view that was
// mounted over a cover, the pages stored through the old one are lost to them.
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

// State returns how the plan is followed on this node.
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

// idle waits for another plan. Reads are not recorded meanwhile.
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

// planned implements Order for a plan.
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
	e.units.Store(numbers)
	f := &follower{e: e, plan: plan, numbers: numbers, changed: changed, results: make(chan *batch, requests), heard: make(map[int]accessplan.Position)}
	budget := e.cfg.Budget - e.cfg.Budget/readShare
	mean, streamed := e.mean(numbers)
	if streamed {
		budget /= 2
		f.streams.budget = budget
	}
	f.t = New(order, Config{Budget: budget, Mean: mean, Size: f.size, Neighbours: f.neighbours, Overflows: f.overflows, Filling: e.cfg.Filling})
	f.line = line{order: f.t.epoch, begun: make(map[int]bool)}
	return f, nil
}

// whole returns the size of the largest unit that is fetched whole.
func (e *Engine) whole() int64 { return min(max(e.cfg.Budget/wholeShare, batchBytes), mostWhole) }

// uncover drops the pages of some files, if files were read before there was a plan, so that enough reads are seen to
// find the positions of the ranks.
func (e *Engine) uncover(n *accessplan.Numbering) {
	pages := e.pages.Load()
	if pages == nil {
		return
	}
	for i := 0; i < n.Len(); i += uncovered {
		if u, ok := e.unit(context.Background(), n, i); ok {
			(*pages).Drop(u.a.Ino, u.off, u.n)
		}
	}
}

// mean estimates from a sample the mean bytes of units that are fetched whole, and whether there are streams.
func (e *Engine) mean(n *accessplan.Numbering) (mean int64, streamed bool) {
	const samples = 64
	var bytes, files int64
	for i := 0; i < n.Len(); i += max(n.Len()/samples, 1) {
		switch u, ok := e.unit(context.Background(), n, i); {
		case !ok:
		case u.n > e.whole():
			streamed = true
		default:
			bytes += u.n
			files++
		}
	}
	return bytes / max(files, 1), streamed
}
