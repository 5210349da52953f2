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

// want is what an operation needs to be left alone by transactions, or what a
// transaction promises to leave as it is: a name, if key is set, or an inode.
// An inode that is not exclusive stays, but may change: others can want that
// at the same time.
type txLock struct {
	key       string // an entry's key
	ino       metadata.Ino
	exclusive bool // always, for a name
}

func lockName(dir metadata.Ino, name string) txLock { return txLock{key: string(entryKey(dir, name))} }

// wantDir is a directory whose entries change.
func lockDir(ino metadata.Ino) txLock { return txLock{ino: ino} }

// wantAlone is an inode whose links change, or that goes.
func lockInode(ino metadata.Ino) txLock { return txLock{ino: ino, exclusive: true} }

// promise is a transaction under way, on the side of its coordinator or of a
// participant, with what it holds.
type preparedTx struct {
	tx    metadata.TxID
	since time.Time     // when it was made here
	done  chan struct{} // closed when it holds nothing any more
	held  []txLock      // under promises.mu

	mu     sync.Mutex
	edits  []edit // under mu
	gaveUp bool   // under mu: given up, but not forgotten
	ended  bool   // under mu: committed or aborted
}

func newPreparedTx(tx metadata.TxID, since time.Time) *preparedTx {
	return &preparedTx{tx: tx, since: since, done: make(chan struct{})}
}

// blocked is the error of an attempt that met a transaction: it is made again
// when that has ended.
type blocked struct{ by *preparedTx }

func (b *blocked) Error() string { return fmt.Sprintf("transaction %v is under way", b.by.tx) }

// Unwrap makes it EAGAIN for who does not wait.
func (b *blocked) Unwrap() error { return syscall.EAGAIN }

// promises is what transactions hold of the store. Who registers or asks in
// order to write has the inodes' stripes.
type txLocks struct {
	n atomic.Int32 // how many hold something; who reads it as 0 need not look further

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

// blocker is a transaction, other than me, that holds one of wants. Called
// with mu.
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

// free is nil if no transaction holds the entry name of dir (none, if it is
// ""), nor keeps dir or those alone from what a local operation does.
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

// in is the transactions that change entries of dir, or dir itself.
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

// get is the transaction tx, if it is under way here.
func (p *txLocks) get(tx metadata.TxID) *preparedTx {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.txs[tx]
}

// all is all transactions that are under way here.
func (p *txLocks) all() []*preparedTx {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.txs))
}

// add makes me known before it holds anything.
func (p *txLocks) add(me *preparedTx) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.txs[me.tx] = me
}

// blockedBy is the transaction, other than me, that holds one of wants; nil if
// none does.
func (p *txLocks) blockedBy(me *preparedTx, wants []txLock) *preparedTx {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocker(me, wants)
}

// hold gives me what it wants, or the transaction that is in the way.
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

// release ends what me holds and wakes who waits for it.
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

// end is release of what is not under way any more.
func (p *txLocks) end(me *preparedTx) {
	p.release(me)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.txs, me.tx)
}

// await returns when the transaction that err tells of holds nothing any more.
// Any other error is returned as it is.
func (s *Store) await(ctx context.Context, err error) error {
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

// retry makes attempts until one does not meet a transaction. It waits without
// keeping Close from closing.
func (s *Store) retry(ctx context.Context, attempt func() error) error {
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

func (s *Store) once(attempt func() error) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	return attempt()
}

// settled waits until the transactions that change entries of dir now, or dir
// itself, have ended. It does not wait for those that come after them.
func (s *Store) awaitTransactions(ctx context.Context, dir metadata.Ino) error {
	for _, by := range s.txLocks.in(dir) {
		if err := s.await(ctx, &blocked{by}); err != nil {
			return err
		}
	}
	return nil
}
