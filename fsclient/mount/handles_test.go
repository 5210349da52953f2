package mount

import (
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// madeAt is a file that is made and open on the first of two nodes, whose clock is now.
func madeAt(t *testing.T, flags uint32) (s, there *fsys, made fuse.CreateOut, now *time.Time) {
	t.Helper()
	nodes, _ := lockNodes(t)
	s, there = nodes[0], nodes[1]
	s.mapsDirect = true
	begun := time.Now()
	now = &begun
	s.handles.now = func() time.Time { return *now }
	in := &fuse.CreateIn{InHeader: fuse.InHeader{NodeId: uint64(metadata.RootIno)}, Flags: flags | syscall.O_CREAT, Mode: syscall.S_IFREG | 0o644}
	if st := s.Create(nil, in, "f", &made); st != fuse.OK {
		t.Fatal(st)
	}
	return s, there, made, now
}

// TestReaderAfterAppends: who reads a file to which lines are appended one by one, each with
// an open of its own, has no pages of it, also between two of them.
func TestReaderAfterAppends(t *testing.T) {
	s, _, made, now := madeAt(t, syscall.O_WRONLY|syscall.O_APPEND)
	direct := func() bool { return s.opensDirect(t, made.NodeId) }
	if !direct() {
		t.Error("beside who appends: pages are kept")
	}
	s.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: made.NodeId}, Fh: made.Fh})
	if *now = now.Add(stillGrowing - 1); !direct() {
		t.Error("between two that append: pages are kept")
	}
	if *now = now.Add(1); direct() {
		t.Error("when nobody appends any more: no pages are kept")
	}
}

// opensDirect reports whether who opens a file to read it has no pages of it.
func (s *fsys) opensDirect(t *testing.T, ino uint64) bool {
	t.Helper()
	var out fuse.OpenOut
	by := fuse.InHeader{NodeId: ino}
	if st := s.Open(nil, &fuse.OpenIn{InHeader: by, Flags: syscall.O_RDONLY}, &out); st != fuse.OK {
		t.Fatal(st)
	}
	s.Release(nil, &fuse.ReleaseIn{InHeader: by, Fh: out.Fh})
	return out.OpenFlags&fuse.FOPEN_DIRECT_IO != 0
}

// TestReaderOfWhatGrows: who opens a file that others make longer, while it is open here, has
// no pages of it; of one that is only written to, here or there, he has.
func TestReaderOfWhatGrows(t *testing.T) {
	s, there, made, now := madeAt(t, syscall.O_RDWR)
	by := fuse.InHeader{NodeId: made.NodeId}
	writeHere := func(off uint64) {
		if n, st := s.Write(nil, &fuse.WriteIn{InHeader: by, Fh: made.Fh, Offset: off, Size: 2}, []byte("ab")); n != 2 || st != fuse.OK {
			t.Fatal(n, st)
		}
	}
	writeFourThere := func() { writeFour(t, there.client, metadata.Ino(made.NodeId)) }
	look := func() {
		var out fuse.AttrOut
		if st := s.GetAttr(nil, &fuse.GetAttrIn{InHeader: by}, &out); st != fuse.OK {
			t.Fatal(st)
		}
	}
	for _, step := range []struct {
		what  string
		do    func()
		grows bool
	}{
		{"written here", func() { writeHere(0) }, false},
		{"more of it here", func() { writeHere(1) }, false},
		{"more of it there", writeFourThere, true},
		{"again there, as long", writeFourThere, false},
	} {
		step.do()
		look()
		if got := s.opensDirect(t, made.NodeId); got != step.grows {
			t.Errorf("%s: without pages: %v, want %v", step.what, got, step.grows)
		}
		*now = now.Add(stillGrowing)
	}
}
