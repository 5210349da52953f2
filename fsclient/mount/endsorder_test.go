package mount

import (
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestEnds: a larger size is told when the shorter answers are given, and an answer
// that is shorter than what was told is not given.
func TestEnds(t *testing.T) {
	e := newEnds()
	for _, end := range []int64{10, 20, 10} {
		if _, ok := e.give(end); !ok {
			t.Fatalf("an answer up to %d is not given", end)
		}
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		e.tell(20)
	}()
	e.tell(10) // nobody waits for this
	e.given(10)
	select {
	case <-told:
		t.Error("20 bytes are told while an answer with 10 is given")
	case <-time.After(10 * time.Millisecond):
	}
	e.given(10)
	<-told
	e.given(20)
	if told, ok := e.give(19); ok || told != 20 {
		t.Errorf("an answer up to 19 after 20 were told: %v, %d", ok, told)
	}
	e.cut(21, 5) // somebody has told more meanwhile
	if _, ok := e.give(19); ok {
		t.Error("an answer up to 19 after a truncate that was too early")
	}
	e.cut(20, 5)
	if _, ok := e.give(5); !ok {
		t.Error("an answer up to 5 after a truncate is not given")
	}
}

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

func BenchmarkEnds(b *testing.B) {
	e := newEnds()
	for b.Loop() {
		e.give(10)
		e.given(10)
	}
}
