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

// readClient is a client of node 1 with a file of node 0 that was opened, and its leased attributes.
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

// A recall that comes while it is decided whether a file may be idle closes the file.
func TestRecallDuringRelease(t *testing.T) {
	c, f := readClient(t, 1)
	recalled := make(chan struct{})
	c.cfg.Now = func() time.Time { // called when it may be
		go func() {
			defer close(recalled)
			c.Revoke([]metadata.LeaseKey{attrKey(f.ino)})
		}()
		for _, left := c.leases.Attr(f.ino); left > 0; _, left = c.leases.Attr(f.ino) { // until the recall waits for the table
			runtime.Gosched()
		}
		return time.Now()
	}
	if !c.files.release(f) {
		t.Fatal("it is still used")
	}
	<-recalled
	if len(c.files.idleSince()) > 0 || !c.files.pending() {
		t.Errorf("%d idle files after the recall; a close is to be reported: %v", len(c.files.idleSince()), c.files.pending())
	}
}
