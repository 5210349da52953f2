package fsclient

import (
	"runtime"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/fsclient/locks"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/leases"
)

// readClient returns a client on node 1 with an open file of node 0 and its leased attributes.
func readClient(t *testing.T, size int64) (*Client, *File) {
	c := &Client{cfg: Config{Self: 1, Now: time.Now}, leases: leases.NewCache(time.Now), closed: wait.NewSignal()}
	c.locks = locks.New(locks.Config{})
	t.Cleanup(c.locks.Close)
	c.files.init()
	f := c.files.acquire(c, 100)
	f.attr = metadata.Attr{Ino: f.ino, Mode: 0o100644, Nlink: 1, Size: size, Ctime: 1}
	f.atHome, f.since = true, 1
	q := c.leases.Fetch()
	defer q.End()
	q.Under(metadata.Lease{Session: metadata.LeaseSession{ID: 1}, Term: time.Hour}).Attr(f.attr, time.Hour)
	return c, f
}

// A large file on a stopped node must not keep its space after its unlink.
func TestLargeFilesAreNotIdle(t *testing.T) {
	for size, want := range map[int64]bool{0: false, 1: true, maxIdleSize: true, maxIdleSize + 1: false} {
		if _, f := readClient(t, size); f.mayIdle() != want {
			t.Errorf("mayIdle of a file of %d bytes = %v, want %v", size, !want, want)
		}
	}
}

// A written file stays idle only if its home knows its state completely. Its next open drops no setuid bits, has seen
// no other version, and its first Sync makes durable what other nodes wrote in between.
func TestWrittenFilesAreIdle(t *testing.T) {
	for name, change := range map[string]func(f *File){
		"":                func(*File) {},
		"dirty":           func(f *File) { f.dirty = true },
		"failed":          func(f *File) { f.failed = true },
		"an append":       func(f *File) { f.app.Written(1, false, 1) },
		"another version": func(f *File) { f.attr.Ctime++ },
		"mapped":          func(f *File) { f.maps = true },
	} {
		_, f := readClient(t, 1)
		f.gen, f.drops, f.existed, f.unsynced = 2, true, false, map[metadata.NodeID]struct{}{1: {}}
		change(f)
		if got := f.mayIdle(); got != (name == "") || got && (f.drops || f.since != 0 || !f.existed) {
			t.Errorf("%q: mayIdle = %v, drops %v, since %v, existed %v", name, got, f.drops, f.since, f.existed)
		}
	}
}

// A recall that arrives while the client decides whether a file may be idle closes the file.
func TestRecallDuringRelease(t *testing.T) {
	c, f := readClient(t, 1)
	recalled := make(chan struct{})
	c.cfg.Now = func() time.Time { // called during that decision
		go func() {
			defer close(recalled)
			c.Revoke([]metadata.LeaseKey{attrKey(f.ino)})
		}()
		for _, left := c.leases.Attr(f.ino); left > 0; _, left = c.leases.Attr(f.ino) { // the recall waits
			runtime.Gosched()
		}
		return time.Now()
	}
	c.files.release(f)
	<-recalled
	if len(c.files.idleSince()) > 0 || !c.files.pending() {
		t.Errorf("%d idle files after the recall; a close is to be reported: %v", len(c.files.idleSince()), c.files.pending())
	}
}

// After a recall a node is not alone, whatever an earlier reply says: pages of a file others append to are not cached.
func TestRecallEndsAlone(t *testing.T) {
	c, f := readClient(t, 1)
	f.holds(metadata.Holding{Alone: true}, 0)
	if !f.Alone() {
		t.Error("not alone before the recall")
	}
	recalled(c, metadata.Recall{Only: []metadata.Ino{f.ino}})
	if f.Alone() {
		t.Error("alone after the recall")
	}
	if f.holds(metadata.Holding{Alone: true}, 0); f.Alone() {
		t.Error("alone after an answer from before the recall")
	}
}
