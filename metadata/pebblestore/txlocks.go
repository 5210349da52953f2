package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// txLock is a lock that a transaction takes, or that an operation needs to be free: on a name, if key is set, or on an
// inode. An inode under a shared lock may change but not be removed.
type txLock struct {
	key       string // of an entry
	ino       metadata.Ino
	exclusive bool // always for a name
}

func lockName(dir metadata.Ino, name string) txLock { return txLock{key: string(entryKey(dir, name))} }

// lockDir is the lock of a directory whose entries change.
func lockDir(ino metadata.Ino) txLock { return txLock{ino: ino} }

// lockInode locks an inode whose links change, or that is removed, exclusively.
func lockInode(ino metadata.Ino) txLock { return txLock{ino: ino, exclusive: true} }

// preparedTx is a transaction in progress, on its coordinator or a participant, with its locks.
type preparedTx struct {
	tx    metadata.TxID
	since time.Time     // when the transaction was prepared here
	done  chan struct{} // closed when the transaction holds no locks
	held  []txLock      // guarded by txLocks.mu

	mu       sync.Mutex
	edits    []edit      // under mu
	recorded bool        // guarded by mu: the intent is on the disk; never on the coordinator
	ended    bool        // guarded by mu: committed or aborted
	gaveUp   atomic.Bool // set under mu, before the locks are released; the intent is kept
}

func newPreparedTx(tx metadata.TxID, since time.Time) *preparedTx {
	return &preparedTx{tx: tx, since: since, done: make(chan struct{})}
}

// blocked is the error of an attempt that found a lock taken: the attempt is repeated when the lock is released.
type blocked struct{ by *preparedTx }

func (b *blocked) Error() string { return fmt.Sprintf("transaction %v is under way", b.by.tx) }

// Unwrap returns EAGAIN, for callers that do not wait.
func (b *blocked) Unwrap() error { return syscall.EAGAIN }

// txLocks holds the locks of transactions. To take one, or to check before a write, the inodes' stripes must be held.
type txLocks struct {
	n atomic.Int32 // transactions with locks; at 0 there is nothing to check

	mu     sync.Mutex
	txs    map[metadata.TxID]*preparedTx  // under mu
	names  map[string]*preparedTx         // under mu: by entry key
	inodes map[metadata.Ino]*preparedTx   // under mu
	dirs   map[metadata.Ino][]*preparedTx // under mu
	waits  atomic.Int64                   // operations that had to wait
}

func (p *txLocks) init() {
	p.txs = make(map[metadata.TxID]*preparedTx)
	p.names = make(map[string]*preparedTx)
	p.inodes = make(map[metadata.Ino]*preparedTx)
	p.dirs = make(map[metadata.Ino][]*preparedTx)
}

// blocker returns a transaction, other than me, that holds one of wants. The caller holds mu.
func (p *txLocks) blocker(me *preparedTx, wants []txLock) *preparedTx {
	for _, w := range wants {
		if w.key != "" {
			if by := p.names[w.key]; by != nil && by != me {
				return by
			}
			continue
		}
		if by := p.inodes[w.ino]; by != nil && by != me {
			return by
		}
		if !w.exclusive {
			continue
		}
		for _, by := range p.dirs[w.ino] {
			if by != me {
				return by
			}
		}
	}
	return nil
}

// checkFree returns nil if no transaction locks the entry name of dir (ignored if it is ""), or prevents a local
// operation on dir or on the inodes alone.
func (p *txLocks) checkFree(dir metadata.Ino, name string, alone ...metadata.Ino) error {
	if p.n.Load() == 0 {
		return nil
	}
	wants := []txLock{lockDir(dir)}
	if name != "" {
		wants = append(wants, lockName(dir, name))
	}
	for _, ino := range alone {
		wants = append(wants, lockInode(ino))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if by := p.blocker(nil, wants); by != nil {
		return &blocked{by}
	}
	return nil
}

// in returns the transactions that change dir or its entries.
func (p *txLocks) in(dir metadata.Ino) []*preparedTx {
	if p.n.Load() == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.dirs[dir])
	if by := p.inodes[dir]; by != nil {
		all = append(all, by)
	}
	return all
}

// get returns the transaction tx, if it is in progress here.
func (p *txLocks) get(tx metadata.TxID) *preparedTx {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.txs[tx]
}

// all returns all transactions in progress here.
func (p *txLocks) all() []*preparedTx {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.txs))
}

// add registers me, before it holds a lock.
func (p *txLocks) add(me *preparedTx) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.txs[me.tx] = me
}

// blockedBy returns a transaction, other than me, that holds one of wants; nil if there is none.
func (p *txLocks) blockedBy(me *preparedTx, wants []txLock) *preparedTx {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocker(me, wants)
}

// acquire takes the locks wants for me, or returns the transaction in the way.
func (p *txLocks) acquire(me *preparedTx, wants []txLock) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.txs[me.tx]; known != nil && known != me {
		return fmt.Errorf("transaction %v is known: %w", me.tx, syscall.EALREADY)
	}
	if by := p.blocker(me, wants); by != nil {
		return &blocked{by}
	}
	p.txs[me.tx] = me
	if len(me.held) == 0 && len(wants) > 0 {
		p.n.Add(1)
	}
	for _, w := range wants {
		switch {
		case slices.Contains(me.held, w):
			continue
		case w.key != "":
			p.names[w.key] = me
		case w.exclusive:
			p.inodes[w.ino] = me
		default:
			p.dirs[w.ino] = append(p.dirs[w.ino], me)
		}
		me.held = append(me.held, w)
	}
	return nil
}

// release releases the locks of me and wakes waiters.
func (p *txLocks) release(me *preparedTx) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range me.held {
		switch {
		case w.key != "":
			delete(p.names, w.key)
		case w.exclusive:
			delete(p.inodes, w.ino)
		default:
			rest := slices.DeleteFunc(p.dirs[w.ino], func(by *preparedTx) bool { return by == me })
			if p.dirs[w.ino] = rest; len(rest) == 0 {
				delete(p.dirs, w.ino)
			}
		}
	}
	if len(me.held) > 0 {
		p.n.Add(-1)
	}
	me.held = nil
	select {
	case <-me.done:
	default:
		close(me.done)
	}
}

// end releases the locks of me and forgets it.
func (p *txLocks) end(me *preparedTx) {
	p.release(me)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.txs, me.tx)
}

// await returns nil when the transaction in err holds no more locks. It returns any other error.
func (s *core) await(ctx context.Context, err error) error {
	b, ok := err.(*blocked) // never wrapped
	if !ok {
		return err
	}
	select {
	case <-b.by.done:
		return nil
	default:
	}
	if ctx.Err() == nil {
		s.txLocks.waits.Add(1)
	}
	select {
	case <-b.by.done:
		return nil
	case <-ctx.Done():
		errno := syscall.EINTR
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			errno = syscall.ETIMEDOUT
		}
		return fmt.Errorf("%v: %w: %w", err, errno, ctx.Err())
	}
}

// retry repeats an attempt until it meets no lock. It does not delay Close while it waits.
func (s *core) retry(ctx context.Context, attempt func() error) error {
	for {
		err := s.once(attempt)
		if err == nil {
			return nil
		}
		if err := s.await(ctx, err); err != nil {
			return err
		}
	}
}

func (s *core) once(attempt func() error) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	return attempt()
}

// awaitTransactions waits for the transactions that currently change dir or its entries, but not for later ones.
func (s *core) awaitTransactions(ctx context.Context, dir metadata.Ino) error {
	for _, by := range s.txLocks.in(dir) {
		if err := s.await(ctx, &blocked{by}); err != nil {
			return err
		}
	}
	return nil
}
