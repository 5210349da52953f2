package mount

import (
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestReaderAfterAppends: who reads a file to which lines are appended one by one, each with
// an open of its own, has no pages of it, also between two of them.
func TestReaderAfterAppends(t *testing.T) {
	nodes, _ := lockNodes(t)
	s := nodes[0]
	s.mapsDirect = true
	now := time.Now()
	s.handles.now = func() time.Time { return now }
	var made fuse.CreateOut
	in := &fuse.CreateIn{InHeader: fuse.InHeader{NodeId: uint64(metadata.RootIno)}, Flags: syscall.O_WRONLY | syscall.O_APPEND | syscall.O_CREAT, Mode: syscall.S_IFREG | 0o644}
	if st := s.Create(nil, in, "f", &made); st != fuse.OK {
		t.Fatal(st)
	}
	direct := func() bool {
		t.Helper()
		var out fuse.OpenOut
		by := fuse.InHeader{NodeId: made.NodeId}
		if st := s.Open(nil, &fuse.OpenIn{InHeader: by, Flags: syscall.O_RDONLY}, &out); st != fuse.OK {
			t.Fatal(st)
		}
		s.Release(nil, &fuse.ReleaseIn{InHeader: by, Fh: out.Fh})
		return out.OpenFlags&fuse.FOPEN_DIRECT_IO != 0
	}
	if !direct() {
		t.Error("beside who appends: pages are kept")
	}
	s.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: made.NodeId}, Fh: made.Fh})
	if now = now.Add(stillAppended - 1); !direct() {
		t.Error("between two that append: pages are kept")
	}
	if now = now.Add(1); direct() {
		t.Error("when nobody appends any more: no pages are kept")
	}
}
