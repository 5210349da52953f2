package chunkstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/bivouacfs/bivouac/metadata"
)

// object is an object in use, or recently used. Its descriptor is opened on demand.
type object struct {
	ino metadata.Ino

	refs     int       // guarded by table.mu
	detached bool      // no longer in the table; guarded by table.mu
	victims  []*object // evicted, closed before this one is opened; guarded by table.mu

	openMu sync.Mutex
	file   File        // guarded by openMu until it is set, then constant
	place  *place      // guarded like file
	sums   *objectSums // guarded like file; nil if its data has no checksums

	mu   sync.RWMutex // held for reading by reads and writes, for writing by truncate and remove
	gone bool         // removed; guarded by mu

	countMu sync.Mutex
	alloc   int64 // this object's part of usage.used; guarded by countMu
}

// table keeps at most max descriptors, the most recently used.
type table struct {
	open  func(o *object, create bool) error
	slots chan struct{} // one for each call in progress; as many as descriptors, so that one is always evictable

	mu      sync.Mutex
	objects map[metadata.Ino]*object              // guarded by mu
	idle    *simplelru.LRU[metadata.Ino, *object] // objects without refs; guarded by mu
	lost    int                                   // objects in use that are no longer in the map; guarded by mu
	closed  bool                                  // guarded by mu
}

func newTable(limit int, open func(*object, bool) error) *table {
	idle, _ := simplelru.NewLRU[metadata.Ino, *object](math.MaxInt, nil) // ref evicts
	return &table{open: open, slots: make(chan struct{}, limit), objects: map[metadata.Ino]*object{}, idle: idle}
}

// acquire returns the object with its descriptor; release returns it. If create is set, a missing object is created,
// else it is ENOENT.
func (t *table) acquire(ctx context.Context, ino metadata.Ino, create bool) (*object, error) {
	if err := t.enter(ctx); err != nil {
		return nil, err
	}
	return t.entered(ino, create)
}

// tryAcquire is acquire of an existing object, without waiting: ok is false while half of the slots are taken.
func (t *table) tryAcquire(ino metadata.Ino) (o *object, ok bool, err error) {
	if len(t.slots) >= (cap(t.slots)+1)/2 {
		return nil, false, nil
	}
	select {
	case t.slots <- struct{}{}:
		o, err = t.entered(ino, false)
		return o, true, err
	default:
		return nil, false, nil
	}
}

// entered is acquire after a slot was obtained.
func (t *table) entered(ino metadata.Ino, create bool) (*object, error) {
	o, err := t.ref(ino)
	if err != nil {
		<-t.slots
		return nil, err
	}
	o.openMu.Lock()
	for _, v := range t.victims(o) {
		_ = v.file.Close() // written data is in the page cache; Sync reports its errors
	}
	if o.file == nil {
		err = t.open(o, create)
	}
	o.openMu.Unlock()
	if err != nil {
		t.release(o)
		return nil, err
	}
	return o, nil
}

// enter waits for a slot.
func (t *table) enter(ctx context.Context) error {
	if ctx.Err() == nil {
		select {
		case t.slots <- struct{}{}:
			return nil
		default:
		}
		select {
		case t.slots <- struct{}{}:
			return nil
		case <-ctx.Done():
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return syscall.ETIMEDOUT
	}
	return syscall.EINTR
}

// ref counts a use of ino's object, and picks an object to evict if there are too many.
func (t *table) ref(ino metadata.Ino) (*object, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("store is closed: %w", syscall.ESHUTDOWN)
	}
	o := t.objects[ino]
	if o == nil {
		o = &object{ino: ino}
		t.objects[ino] = o
	}
	t.idle.Remove(ino)
	o.refs++
	if len(t.objects)+t.lost > cap(t.slots) {
		if _, v, ok := t.idle.RemoveOldest(); ok {
			v.detached = true
			delete(t.objects, v.ino)
			o.victims = append(o.victims, v)
		}
	}
	return o, nil
}

// victims takes the evicted objects that make room for o. The call that opens o closes them first, including those that
// other calls picked.
func (t *table) victims(o *object) []*object {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := o.victims
	o.victims = nil
	return v
}

// release returns an object.
func (t *table) release(o *object) {
	t.mu.Lock()
	o.refs--
	var closing File
	if o.refs == 0 {
		if o.file == nil { // it was never opened, and without other refs no call is opening it
			t.drop(o)
		}
		switch {
		case !o.detached:
			t.idle.Add(o.ino, o)
		case o.file == nil:
			t.lost--
		default:
			closing = o.file
		}
	}
	t.mu.Unlock()
	if closing != nil {
		_ = closing.Close() // of a removed object
		t.mu.Lock()
		t.lost-- // its descriptor is closed now
		t.mu.Unlock()
	}
	<-t.slots
}

// detach removes o from the table: the next acquire of its inode creates a new object.
func (t *table) detach(o *object) {
	t.mu.Lock()
	t.drop(o)
	t.mu.Unlock()
}

// drop is detach with mu held.
func (t *table) drop(o *object) {
	if !o.detached {
		o.detached = true
		t.lost++
		delete(t.objects, o.ino)
	}
}

// close waits for the calls in progress and closes every descriptor.
func (t *table) close() error {
	t.mu.Lock()
	was := t.closed
	t.closed = true
	t.mu.Unlock()
	if was {
		return nil
	}
	for range cap(t.slots) {
		t.slots <- struct{}{}
	}
	var errs []error
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.idle.Values() {
		errs = append(errs, o.file.Close())
	}
	t.idle.Purge()
	clear(t.objects)
	for range cap(t.slots) {
		<-t.slots
	}
	return errors.Join(errs...)
}
