package mounts

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
)

// TestCoverRefuses: a helper mounts in our mounts only, under a plain name.
func TestCoverRefuses(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "../x", "a\x00", strings.Repeat("n", 256)} {
		c := Cover{Base: t.TempDir(), Name: name}
		if _, _, err := c.Mount(context.Background(), "/bin/false"); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Mount over %q = %v, want EINVAL", name, err)
		}
		if err := c.Help(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Help for %q = %v, want EINVAL", name, err)
		}
	}
	for _, base := range []string{t.TempDir(), "/proc", "/nothing/is/here"} {
		if err := (Cover{Base: base, Name: "x"}).Help(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Help in %s = %v, want EINVAL", base, err)
		}
	}
}

// TestCoverHelperFails: a helper that mounts nothing is an error, with what it
// has said.
func TestCoverHelperFails(t *testing.T) {
	c := Cover{Base: t.TempDir(), Name: "x"}
	if _, _, err := c.Mount(context.Background(), "/bin/false"); err == nil {
		t.Error("a helper that does nothing has mounted")
	}
	if _, _, err := c.Mount(context.Background(), "/nothing/is/here"); err == nil {
		t.Error("a helper that is not there has mounted")
	}
}
