package mounts

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
)

// TestAwait: what the helper says is believed, and that it says nothing, too.
func TestAwait(t *testing.T) {
	says := func(s string) *bufio.Reader { return bufio.NewReader(strings.NewReader(s)) }
	r := says("ok\nshown\n")
	if err := errors.Join(AwaitPlaced(r), AwaitShown(r)); err != nil {
		t.Errorf("a view that is there and shown: %v", err)
	}
	if err := AwaitPlaced(says("no loop device\n")); err == nil || !strings.Contains(err.Error(), "no loop device") {
		t.Errorf("a view that is not: %v", err)
	}
	for what, await := range map[string]func(*bufio.Reader) error{"placed": AwaitPlaced, "shown": AwaitShown} {
		if err := await(says("")); !errors.Is(err, io.EOF) {
			t.Errorf("nothing of whether it is %s: %v, want EOF", what, err)
		}
	}
	if err := AwaitShown(says("ok\n")); !errors.Is(err, syscall.EIO) {
		t.Errorf("something else than that it is shown: %v, want EIO", err)
	}
}

// TestDeep: what is said of a dataset is heard, and who says nothing is not waited for.
func TestDeep(t *testing.T) {
	for _, want := range []bool{false, true} {
		near, far, err := Talk()
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		if err := TellDeep(near, want); err != nil || hearDeep(far) != want {
			t.Errorf("deep %v is heard as something else: %v", want, err)
		}
		if err := near.Close(); err != nil || !hearDeep(far) {
			t.Errorf("a talk that has ended: not deep, %v", err)
		}
	}
}

// TestAskVisit: who is asked to list a cover hears of how many names, who is not hears the end, and
// that he has ended is heard.
func TestAskVisit(t *testing.T) {
	for _, names := range []int{-1, 0, 7, 1 << 31} {
		near, far, err := Talk()
		if err != nil {
			t.Fatal(err)
		}
		if names < 0 {
			err = near.CloseWrite()
		} else {
			err = AskVisit(near, uint32(names))
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := askedToVisit(far)
		if (err == nil) != (names >= 0) || err == nil && got != names {
			t.Errorf("asked to list %d names: heard %d, %v", names, got, err)
		}
		if err := far.Close(); err != nil {
			t.Fatal(err)
		}
		if err := AwaitEnd(bufio.NewReader(near)); err != nil {
			t.Errorf("the end is not heard: %v", err)
		}
		_ = near.Close()
	}
	if err := AwaitEnd(bufio.NewReader(strings.NewReader("shown\n"))); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("something else than the end: %v, want EPROTO", err)
	}
}
