package mount

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// madeAt creates a file that is open on the first of two nodes; now is their clock.
func madeAt(t *testing.T, flags uint32) (s, there *fsys, made fuse.CreateOut, now *time.Time) {
	t.Helper()
	nodes, _ := lockNodes(t)
	s, there = nodes[0], nodes[1]
	s.dropsDirect = true
	begun := time.Now()
	now = &begun
	s.handles.now = func() time.Time { return *now }
	in := &fuse.CreateIn{InHeader: fuse.InHeader{NodeId: uint64(metadata.RootIno)}, Flags: flags | syscall.O_CREAT, Mode: syscall.S_IFREG | 0o644}
	if st := s.Create(nil, in, "f", &made); st != fuse.OK {
		t.Fatal(st)
	}
	return s, there, made, now
}

// The kernel keeps its pages only for writes whose bytes it keeps in locked pages.
func TestIntoPages(t *testing.T) {
	for _, c := range []struct {
		flags, write uint32
		direct, want bool
	}{
		{flags: syscall.O_RDWR, want: true},
		{flags: syscall.O_RDWR | syscall.O_SYNC, want: true},
		{flags: syscall.O_RDWR, direct: true},
		{flags: syscall.O_RDWR | syscall.O_DIRECT},
		{flags: syscall.O_RDWR | syscall.O_APPEND},
		{flags: syscall.O_WRONLY},
		{flags: syscall.O_WRONLY, write: fuse.WRITE_CACHE, want: true}, // from a mapping, by any descriptor
	} {
		if got := intoPages(&handle{direct: c.direct}, &fuse.WriteIn{Flags: c.flags, WriteFlags: c.write}); got != c.want {
			t.Errorf("%+v: intoPages = %v", c, got)
		}
	}
}

// TestReaderAfterAppends: a reader of a file to which lines are appended, each with its own open, gets no cached pages,
// also between two appends, if another node has the file open.
func TestReaderAfterAppends(t *testing.T) {
	s, there, made, now := madeAt(t, syscall.O_WRONLY|syscall.O_APPEND)
	if s.opensDirect(t, made.NodeId) {
		t.Error("no other node has it open: no pages are cached")
	}
	by := fuse.InHeader{NodeId: made.NodeId}
	f, err := there.client.Open(t.Context(), metadata.Ino(made.NodeId))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close(context.Background()) }()
	if n, st := s.Write(nil, &fuse.WriteIn{InHeader: by, Fh: made.Fh, Size: 2, Flags: syscall.O_APPEND}, []byte("ab")); n != 2 || st != fuse.OK {
		t.Fatal(n, st)
	}
	if st := s.Fsync(nil, &fuse.FsyncIn{InHeader: by, Fh: made.Fh}); st != fuse.OK {
		t.Fatal(st)
	}
	if !s.opensDirect(t, made.NodeId) {
		t.Error("during an append: pages are cached")
	}
	s.Release(nil, &fuse.ReleaseIn{InHeader: by, Fh: made.Fh})
	if *now = now.Add(stillGrowing - 1); !s.opensDirect(t, made.NodeId) {
		t.Error("between two appends: pages are cached")
	}
	if *now = now.Add(1); s.opensDirect(t, made.NodeId) {
		t.Error("after the appends: no pages are cached")
	}
}

// opensDirect reports whether a reader that opens the file gets no cached pages.
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

// TestReaderOfGrowingFile: a reader of a file that other nodes extend, while it is open here, gets no cached pages; it
// gets them for a file whose size does not change.
func TestReaderOfGrowingFile(t *testing.T) {
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
			t.Errorf("%s: no cached pages: %v, want %v", step.what, got, step.grows)
		}
		*now = now.Add(stillGrowing)
	}
}

// TestLookupLease: a lookup reply may be in flight while its lease is recalled and the kernel does not know the inode
// yet, so the attributes stay valid only for the stat after it.
func TestLookupLease(t *testing.T) {
	s := &fsys{}
	dir := metadata.Attr{Ino: 1000, Mode: syscall.S_IFDIR | 0o755}
	for left, want := range map[time.Duration]time.Duration{0: 0, time.Millisecond: time.Millisecond, time.Second: dirFresh + tickSlack} {
		if got := s.lookupLease(&dir, left); got != want {
			t.Errorf("lookupLease(%v) = %v, want %v", left, got, want)
		}
	}
}
