package node_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/node"
)

// TestAbsent: the text of an Absent or Present error omits the errno, but errors.Is finds it.
func TestAbsent(t *testing.T) {
	err := fmt.Errorf("again: %w", node.Absent("no dataset is named %q", "x"))
	if got, want := node.ErrorText(err), `again: no dataset is named "x"`; got != want || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("ErrorText = %q, want %q, an ENOENT", got, want)
	}
	if err := node.Present("set is there"); node.ErrorText(err) != "set is there" || !errors.Is(err, syscall.EEXIST) {
		t.Errorf("Present: %q, want an EEXIST", node.ErrorText(err))
	}
}

// TestErrorText: the user reads what is wrong, without the errno text where the message suffices.
func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{syscall.EBADMSG, "bad message"},
		{fmt.Errorf("read: %w", syscall.EIO), "read: input/output error"},
		{fmt.Errorf("a.tar: it is truncated: copy it again: %w", syscall.EBADMSG), "a.tar: it is truncated: copy it again"},
		{fmt.Errorf("f: %w", fmt.Errorf("was changed: %w", syscall.ESTALE)), "f: was changed"},
		{fmt.Errorf("%w; the last member is x", syscall.EBADMSG), "bad message; the last member is x"},
		{errors.New("plain"), "plain"},
		{fmt.Errorf("open f: %v: %w", syscall.EACCES, syscall.EIO), "open f: permission denied"},
		{fmt.Errorf("open f: %v: %w", syscall.EACCES, syscall.EINVAL), "open f: permission denied"},
	} {
		if got := node.ErrorText(c.err); got != c.want {
			t.Errorf("node.ErrorText(%v) = %q, want %q", c.err, got, c.want)
		}
	}
}

func TestClip(t *testing.T) {
	if got := node.Clip(strings.Repeat("x", node.MaxErrorText+1)); len(got) != node.MaxErrorText {
		t.Errorf("Clip leaves %d bytes, want %d", len(got), node.MaxErrorText)
	}
	if got := node.Clip("short"); got != "short" {
		t.Errorf("Clip of a short text = %q", got)
	}
}
