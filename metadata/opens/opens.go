// Package opens is what the home of live files does for those who have them
// open. Its one idea is that the home knows which nodes have a file open, so
// that it alone decides when a file without a name is removed, and from where.
//
// Registry is the memory of that: a state machine without I/O. Files is the
// Registry with the home's store, and removes what nobody can reach any more.
//
// # What it knows, and from whom
//
// A client has a file open from the ticket of its Open or CreateOpen to that of
// its Closed. Closes come late and in batches; a ticket that is smaller than
// the last one of an open does nothing. A client is known by its run: with the
// first word of a later run all that the earlier ones had is closed. A node
// that was given up has nothing open.
//
// The memory dies with the home's process. Afterwards every node is awaited:
// until it has been asked (metadata.Recall), or was given up, nothing is
// removed. A close that was lost is found out in the same way: who is said to
// have a file without a name open is asked now and then.
//
// # Removal
//
// A file without a name that nobody has open is removed: its objects on the
// nodes that can have some, then its inode. Which nodes these are follows from
// its size, unless it is unsure: a writer died, or could not tell its size, or
// the home's process is younger than the orphan; then it is all of its stripe.
// Who gives Config.Places sees to the files that are older than that process: a
// writer may have died before.
// As long as a node cannot be reached its orphans stay, and are tried again.
//
// # Appends
//
// Package appends is the protocol; the Registry keeps a Home for each file that
// is appended to. A node that is lost, or has a new run, has no append under
// way any more. A home that starts again asks every node for its appends before
// it gives a place (Recover); a node that comes back to a running home is asked
// only for what it has open (Await).
//
// # Locks
//
//	Registry.mu   held for a few steps in memory
//	  Locker      what is locked of its own
//	Files.mu      what could not be removed; never with Registry.mu
package opens

import (
	"context"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
)

// Store is what is needed of the home's store.
type Store interface {
	Getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error)
	Create(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error)
	Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error)
	Reap(ctx context.Context, ino metadata.Ino) error
}

// Config is what Files needs of the world. Store, Places and Remove are
// required.
type Config struct {
	Store Store
	// Places is the nodes that can have data of a file; all of its stripe, if
	// the size in a does not tell.
	Places func(ctx context.Context, a metadata.Attr, all bool) ([]metadata.NodeID, error)
	// Remove removes objects on a node; those that are not there are no error.
	Remove func(ctx context.Context, id metadata.NodeID, inos []metadata.Ino) error
	Run    metadata.Run     // of this home; clients tell its lives apart by it
	Locks  Locker           // nil is none
	Now    func() time.Time // nil is time.Now
	Log    *logrus.Entry
}

// Files is the open files of one home.
type Files struct {
	*Registry
	cfg  Config
	kick chan struct{} // there may be something to remove; one is enough

	mu   sync.Mutex
	kept []metadata.Ino // under mu: what could not be removed

	// layouts keeps the layout of a file from changing while somebody opens it.
	// It comes before all locks of the store and of the Registry.
	layouts sync.RWMutex
}

var _ metadata.Opens = (*Files)(nil)

// New is the open files of a home that knows of none.
func New(cfg Config) *Files {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		cfg.Log = logrus.NewEntry(l)
	}
	f := &Files{cfg: cfg, kick: make(chan struct{}, 1)}
	f.Registry = NewRegistry(f.poke, cfg.Locks)
	return f
}

// Open is metadata.Opens.
func (f *Files) Open(ctx context.Context, by metadata.Holder, ino metadata.Ino, t metadata.Ticket) (metadata.Attr, error) {
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

// CreateOpen is metadata.Opens.
func (f *Files) CreateOpen(ctx context.Context, by metadata.Holder, t metadata.Ticket, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if n.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return metadata.Attr{}, fmt.Errorf("create of %q with mode %o: %w", name, n.Mode, syscall.EINVAL)
	}
	f.layouts.RLock()
	defer f.layouts.RUnlock()
	moment := f.Begin()
	defer f.End(moment)
	a, err := f.cfg.Store.Create(ctx, dir, name, n)
	if err != nil {
		return a, err
	}
	return a, f.Registry.Open(by, a.Ino, t)
}

// Closed is metadata.Opens.
func (f *Files) Closed(_ context.Context, by metadata.Holder, files []metadata.Opened) error {
	for _, o := range files {
		f.Close(by, o)
	}
	return nil
}

// Holds waits until it is known what is open, and is ENOLCK if by has not ino
// open: then it can have no locks on it either.
func (f *Files) Holds(ctx context.Context, by metadata.Holder, ino metadata.Ino) error {
	for {
		wait, open := f.Has(by, ino)
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

// Unnamed notes that a file has lost its last name. It does not wait.
func (f *Files) Unnamed(ino metadata.Ino) { f.Orphaned(ino, false) }

// poke has Serve look for what can be removed.
func (f *Files) poke() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// Retry has Serve try again what could not be removed, and returns how many files
// that are.
func (f *Files) Retry() int {
	f.mu.Lock()
	kept := f.kept
	f.kept = nil
	f.mu.Unlock()
	for _, ino := range kept {
		f.Kept(ino)
	}
	return len(kept)
}

// The bounds of removal.
const (
	batch      = 1024 // files that are removed together
	batches    = 4    // batches at a time, so that one slow node does not stop the others
	removeTime = 10 * time.Second
)

// Serve removes files without a name until ctx ends.
func (f *Files) Serve(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, batches)
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.kick:
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
