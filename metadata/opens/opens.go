package opens

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
)

// Store is the part of the home's store that Files uses. Its Setattr must not be Files.Set, which waits for Files.
type Store interface {
	Getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error)
	// CreateUnnamed creates an orphan that may be linked to a name until Doom, which returns an inode's attributes.
	CreateUnnamed(ctx context.Context, dir metadata.Ino, n metadata.New) (metadata.Attr, error)
	Doom(ctx context.Context, ino metadata.Ino) (metadata.Attr, error)
	Create(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error)
	Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error)
	Reap(ctx context.Context, ino metadata.Ino) error
}

// Place is an object on a node.
type Place struct {
	Node   metadata.NodeID
	Object metadata.Ino
}

// Config configures Files. Store, Places and Remove are required.
type Config struct {
	Store Store
	// Places returns the objects that a file may have. With all, the size in a is not reliable, and it returns the
	// objects on all nodes of the stripe.
	Places func(ctx context.Context, a metadata.Attr, all bool) ([]Place, error)
	// Remove removes objects on a node. A missing object is no error.
	Remove func(ctx context.Context, id metadata.NodeID, inos []metadata.Ino) error
	// Recall asks a node which of its files it has open, and to send its buffered appends to the files that are named.
	// nil: closes in flight count when they arrive, and no node buffers appends.
	Recall func(ctx context.Context, id metadata.NodeID, q metadata.Recall) (metadata.Recalled, error)
	// Changed is called with a file whose size or version has changed without a request, for example because a node
	// died. It may be nil.
	Changed func(ctx context.Context, ino metadata.Ino)
	Run     metadata.Run // run of the client on this node, which recalls carry
	Locks   Locker       // may be nil
	// Rest is how long a small file without a name can still be opened: a process on another node may have looked its
	// name up just before a rename replaced it. 0: not at all.
	Rest time.Duration
	Now  func() time.Time // nil: time.Now
	Log  *logrus.Entry
}

// Files is the open files of one home.
type Files struct {
	*Registry
	cfg    Config
	wakeup chan struct{} // there may be files to remove; capacity 1

	mu      sync.Mutex
	failed  []metadata.Ino    // under mu: files whose removal failed
	resting [2][]metadata.Ino // under mu: files that may still be opened, newer and older ones

	waiting atomic.Int32 // truncates and size updates that wait for truncates

	// layouts keeps the layout of a file from changing while it is opened. It is
	// taken before all locks of the store and of the Registry.
	layouts sync.RWMutex
}

var (
	_ metadata.Opens       = (*Files)(nil)
	_ metadata.AheadOpener = (*Files)(nil)
)

// New returns a Files without open files.
func New(cfg Config) *Files {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		cfg.Log = logrus.NewEntry(l)
	}
	f := &Files{cfg: cfg, wakeup: make(chan struct{}, 1)}
	f.Registry = NewRegistry(f.wakeServe, cfg.Locks)
	return f
}

// Open implements metadata.Opens.
func (f *Files) Open(ctx context.Context, by metadata.Holder, ino metadata.Ino, o metadata.Opening) (metadata.Holding, error) {
	a, err := f.open(ctx, by, ino, o.Ticket)
	if err != nil {
		return metadata.Holding{Attr: a}, err
	}
	f.endAlone(ctx, by, ino)
	return f.holding(ctx, by, a, o), nil
}

func (f *Files) open(ctx context.Context, by metadata.Holder, ino metadata.Ino, t metadata.Ticket) (metadata.Attr, error) {
	f.layouts.RLock()
	defer f.layouts.RUnlock()
	if err := f.Registry.Open(by, ino, t); err != nil {
		return metadata.Attr{}, err
	}
	a, err := f.cfg.Store.Getattr(ctx, ino)
	if err != nil {
		f.Close(by, metadata.Opened{Ino: ino, Ticket: t})
		return metadata.Attr{}, err
	}
	return a, nil
}

// CreateOpen implements metadata.Opens.
func (f *Files) CreateOpen(ctx context.Context, by metadata.Holder, o metadata.Opening, dir metadata.Ino, name string, n metadata.New) (metadata.Holding, error) {
	a, err := f.createOpen(ctx, by, o.Ticket, dir, name, n)
	if err != nil {
		return metadata.Holding{Attr: a}, err
	}
	return f.holding(ctx, by, a, o), nil
}

// holding returns the answer to an open that has succeeded.
func (f *Files) holding(ctx context.Context, by metadata.Holder, a metadata.Attr, o metadata.Opening) metadata.Holding {
	h := metadata.Holding{Attr: a, Alone: f.Alone(by, a.Ino), Run: f.runAfter(f.cfg.Run)}
	h.Maps = o.Maps && f.mayMap(ctx, by, a.Ino)
	return h
}

func (f *Files) createOpen(ctx context.Context, by metadata.Holder, t metadata.Ticket, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if n.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return metadata.Attr{}, fmt.Errorf("create of %q with mode %o: %w", name, n.Mode, syscall.EINVAL)
	}
	f.layouts.RLock()
	defer f.layouts.RUnlock()
	seq := f.BeginCreate()
	defer f.EndCreate(seq)
	var a metadata.Attr
	var err error
	if name == "" {
		a, err = f.cfg.Store.CreateUnnamed(ctx, dir, n)
	} else {
		a, err = f.cfg.Store.Create(ctx, dir, name, n)
	}
	if err != nil {
		return a, err
	}
	return a, f.Registry.Open(by, a.Ino, t)
}

// Closed implements metadata.Opens.
func (f *Files) Closed(_ context.Context, by metadata.Holder, files []metadata.Opened) error {
	for _, o := range files {
		f.Close(by, o)
	}
	return nil
}

// Holds waits until no node is awaited, and calls do. If by does not have ino open, it returns ENOLCK without calling
// do: by cannot hold locks on the file either. do must not block.
func (f *Files) Holds(ctx context.Context, by metadata.Holder, ino metadata.Ino, do func()) error {
	for {
		wait, open := f.Has(by, ino, do)
		switch {
		case open:
			return nil
		case wait == nil:
			return fmt.Errorf("inode %v is not open on node %d: %w", ino, by.Node, syscall.ENOLCK)
		}
		if err := await(ctx, wait, 0); err != nil {
			return fmt.Errorf("inode %v: %w", ino, err)
		}
	}
}

// mostRest is the size of the largest file that rests, in bytes: the space of larger files may be needed at once.
const mostRest = 1 << 20

// Unnamed records that a file of that size has lost its last name. It does not block.
func (f *Files) Unnamed(ino metadata.Ino, size int64) {
	if f.cfg.Rest <= 0 || size > mostRest {
		f.Orphaned(ino, false)
		return
	}
	f.Rest(ino)
	f.mu.Lock()
	f.resting[0] = append(f.resting[0], ino)
	f.mu.Unlock()
}

// endRests ends the rest of the files that began to rest before the previous call.
func (f *Files) endRests() {
	f.mu.Lock()
	over := f.resting[1]
	f.resting = [2][]metadata.Ino{nil, f.resting[0]}
	f.mu.Unlock()
	f.Rested(over)
}

// wakeServe makes Serve look for removable files.
func (f *Files) wakeServe() {
	select {
	case f.wakeup <- struct{}{}:
	default:
	}
}

// Retry makes Serve retry the removals that failed, and returns their number.
func (f *Files) Retry() int {
	f.mu.Lock()
	failed := f.failed
	f.failed = nil
	f.mu.Unlock()
	for _, ino := range failed {
		f.NotRemoved(ino)
	}
	return len(failed)
}

// The bounds of removal.
const (
	batch      = 1024 // files removed together
	batches    = 4    // concurrent batches, so that one slow node does not block the others
	removeTime = 10 * time.Second
)

// Serve removes orphans that no node has open, and publishes the changes caused by the death of a node or a failed
// truncate, until ctx ends.
func (f *Files) Serve(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, batches)
	var rests <-chan time.Time
	if f.cfg.Rest > 0 {
		t := time.NewTicker(f.cfg.Rest)
		defer t.Stop()
		rests = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wakeup:
			f.publishOutdated(ctx)
		case <-rests:
			f.endRests()
			f.endFreezes(f.cfg.Now())
		}
		for ctx.Err() == nil {
			slots <- struct{}{}
			files := f.Take(batch)
			if len(files) == 0 {
				<-slots
				break
			}
			wg.Go(func() {
				f.remove(ctx, files)
				<-slots
			})
		}
	}
}
