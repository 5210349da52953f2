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
type want struct {
	key       string // an entry's key
	ino       metadata.Ino
	exclusive bool // always, for a name
}

func wantName(dir metadata.Ino, name string) want { return want{key: string(entryKey(dir, name))} }

// wantDir is a directory whose entries change.
func wantDir(ino metadata.Ino) want { return want{ino: ino} }

// wantAlone is an inode whose links change, or that goes.
func wantAlone(ino metadata.Ino) want { return want{ino: ino, exclusive: true} }

// promise is a transaction under way, on the side of its coordinator or of a
// participant, with what it holds.
type promise struct {
	tx    metadata.TxID
	since time.Time     // when it was made here
	done  chan struct{} // closed when it holds nothing any more
	held  []want        // under promises.mu

	mu    sync.Mutex
	edits []edit // under mu
	late  bool   // under mu: given up, but not forgotten
	over  bool   // under mu: committed or aborted
}

func newPromise(tx metadata.TxID, since time.Time) *promise {
	return &promise{tx: tx, since: since, done: make(chan struct{})}
}

// blocked is the error of an attempt that met a transaction: it is made again
// when that has ended.
type blocked struct{ by *promise }

func (b *blocked) Error() string { return fmt.Sprintf("transaction %v is under way", b.by.tx) }

// Unwrap makes it EAGAIN for who does not wait.
func (b *blocked) Unwrap() error { return syscall.EAGAIN }

// promises is what transactions hold of the store. Who registers or asks in
// order to write has the inodes' stripes.
type promises struct {
	n atomic.Int32 // how many hold something; who reads it as 0 need not look further

	mu    sync.Mutex
	txs   map[metadata.TxID]*promise  // under mu
	names map[string]*promise         // under mu: by entry key
	alone map[metadata.Ino]*promise   // under mu
	dirs  map[metadata.Ino][]*promise // under mu
	waits atomic.Int64                // operations that had to wait
}

func (p *promises) init() {
	p.txs = make(map[metadata.TxID]*promise)
	p.names = make(map[string]*promise)
	p.alone = make(map[metadata.Ino]*promise)
	p.dirs = make(map[metadata.Ino][]*promise)
}

// blocker is a transaction, other than me, that holds one of wants. Called
// with mu.
func (p *promises) blocker(me *promise, wants []want) *promise {
	for _, w := range wants {
		if w.key != "" {
			if by := p.names[w.key]; by != nil && by != me {
				return by
			}
			continue
		}
		if by := p.alone[w.ino]; by != nil && by != me {
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
func (p *promises) free(dir metadata.Ino, name string, alone ...metadata.Ino) error {
	if p.n.Load() == 0 {
		return nil
	}
	wants := []want{wantDir(dir)}
	if name != "" {
		wants = append(wants, wantName(dir, name))
	}
	for _, ino := range alone {
		wants = append(wants, wantAlone(ino))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if by := p.blocker(nil, wants); by != nil {
		return &blocked{by}
	}
	return nil
}

// in is the transactions that change entries of dir, or dir itself.
func (p *promises) in(dir metadata.Ino) []*promise {
	if p.n.Load() == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.dirs[dir])
	if by := p.alone[dir]; by != nil {
		all = append(all, by)
	}
	return all
}

// get is the transaction tx, if it is under way here.
func (p *promises) get(tx metadata.TxID) *promise {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.txs[tx]
}

// all is all transactions that are under way here.
func (p *promises) all() []*promise {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.txs))
}

// add makes me known before it holds anything.
func (p *promises) add(me *promise) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.txs[me.tx] = me
}

// blockedBy is the transaction, other than me, that holds one of wants; nil if
// none does.
func (p *promises) blockedBy(me *promise, wants []want) *promise {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocker(me, wants)
}

// hold gives me what it wants, or the transaction that is in the way.
func (p *promises) hold(me *promise, wants []want) error {
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
			p.alone[w.ino] = me
		default:
			p.dirs[w.ino] = append(p.dirs[w.ino], me)
		}
		me.held = append(me.held, w)
	}
	return nil
}

// release ends what me holds and wakes who waits for it.
func (p *promises) release(me *promise) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range me.held {
		switch {
		case w.key != "":
			delete(p.names, w.key)
		case w.exclusive:
			delete(p.alone, w.ino)
		default:
			rest := slices.DeleteFunc(p.dirs[w.ino], func(by *promise) bool { return by == me })
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
func (p *promises) end(me *promise) {
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
		s.promises.waits.Add(1)
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
func (s *Store) settled(ctx context.Context, dir metadata.Ino) error {
	for _, by := range s.promises.in(dir) {
		if err := s.await(ctx, &blocked{by}); err != nil {
			return err
		}
	}
	return nil
}
