package mount

import (
	"testing"
	"time"
)

// TestKernelSize: a larger size is announced after the shorter replies, and a reply that is shorter than the announced
// size is not sent.
func TestKernelSize(t *testing.T) {
	e := newKernelSize()
	for _, end := range []int64{10, 20, 10} {
		if _, ok := e.beginReply(end); !ok {
			t.Fatalf("an answer up to %d is not given", end)
		}
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		e.announce(20)
	}()
	e.announce(10) // does not block
	e.endReply(10)
	select {
	case <-told:
		t.Error("20 bytes are announced during an answer of 10")
	case <-time.After(10 * time.Millisecond):
	}
	e.endReply(10)
	<-told
	e.endReply(20)
	if told, ok := e.beginReply(19); ok || told != 20 {
		t.Errorf("an answer up to 19 after 20 were announced: %v, %d", ok, told)
	}
	e.cut(21, 5) // a larger size was announced in between
	if _, ok := e.beginReply(19); ok {
		t.Error("an answer up to 19 after a truncate that was too early")
	}
	e.cut(20, 5)
	if _, ok := e.beginReply(5); !ok {
		t.Error("an answer up to 5 after a truncate is not given")
	}
}

func BenchmarkEnds(b *testing.B) {
	e := newKernelSize()
	for b.Loop() {
		e.beginReply(10)
		e.endReply(10)
	}
}
