package mounts

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
)

// TestAwait distinguishes a helper's lines from its errors and from its exit.
func TestAwait(t *testing.T) {
	says := func(s string) *bufio.Reader { return bufio.NewReader(strings.NewReader(s)) }
	r := says("ok\nattached\n")
	if err := errors.Join(AwaitMade(r), AwaitAttached(r)); err != nil {
		t.Errorf("a view that is attached: %v", err)
	}
	if err := AwaitMade(says("no loop device\n")); err == nil || !strings.Contains(err.Error(), "no loop device") {
		t.Errorf("a view that failed: %v", err)
	}
	for what, await := range map[string]func(*bufio.Reader) error{"made": AwaitMade, "attached": AwaitAttached} {
		if err := await(says("")); !errors.Is(err, io.EOF) {
			t.Errorf("end before it is %s: %v, want EOF", what, err)
		}
	}
	if err := AwaitAttached(says("ok\n")); !errors.Is(err, syscall.EIO) {
		t.Errorf("another line than that it is attached: %v, want EIO", err)
	}
}

// TestDeep: a helper hears whether a dataset is deep, and the end of the talk counts as deep.
func TestDeep(t *testing.T) {
	for _, want := range []bool{false, true} {
		near, far, err := Talk()
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		if err := TellDeep(near, want); err != nil || hearDeep(far) != want {
			t.Errorf("deep %v was received otherwise: %v", want, err)
		}
		if err := near.Close(); err != nil || !hearDeep(far) {
			t.Errorf("the end of the talk is not deep: %v", err)
		}
	}
}

// TestAskWarm: a helper receives the number of names to list, or the end of the talk, and the
// daemon learns of the helper's end.
func TestAskWarm(t *testing.T) {
	for _, names := range []int{-1, 0, 7, 1 << 31} {
		near, far, err := Talk()
		if err != nil {
			t.Fatal(err)
		}
		if names < 0 {
			err = near.CloseWrite()
		} else {
			err = AskWarm(near, uint32(names))
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := askedToWarm(far)
		if (err == nil) != (names >= 0) || err == nil && got != names {
			t.Errorf("asked to list %d names: received %d, %v", names, got, err)
		}
		if err := far.Close(); err != nil {
			t.Fatal(err)
		}
		if err := AwaitEnd(bufio.NewReader(near)); err != nil {
			t.Errorf("the end of the helper: %v", err)
		}
		_ = near.Close()
	}
	if err := AwaitEnd(bufio.NewReader(strings.NewReader("attached\n"))); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("another line than the end: %v, want EPROTO", err)
	}
}
