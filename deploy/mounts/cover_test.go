package mounts

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestCoverRefuses: a helper mounts only below mounts of bivouac, and only over plain names.
func TestCoverRefuses(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "../x", "a\x00", strings.Repeat("n", 256)} {
		c := Cover{Base: t.TempDir(), Name: name}
		if _, err := c.Mount(t.Context(), "/bin/false"); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Mount over %q = %v, want EINVAL", name, err)
		}
		if _, _, err := c.make(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("make for %q = %v, want EINVAL", name, err)
		}
	}
	for _, base := range []string{t.TempDir(), "/proc", "/nothing/is/here"} {
		c := Cover{Base: base, Name: "x"}
		if _, _, err := c.make(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("make in %s = %v, want EINVAL", base, err)
		}
	}
}

// TestCoverHelperFails: a helper that mounts nothing is an error.
func TestCoverHelperFails(t *testing.T) {
	c := Cover{Base: t.TempDir(), Name: "x"}
	if _, err := c.Mount(t.Context(), "/bin/false"); err == nil {
		t.Error("a helper that does nothing is no error")
	}
	if _, err := c.Mount(t.Context(), "/nothing/is/here"); err == nil {
		t.Error("a missing helper is no error")
	}
}

// devNull returns the null device, for a helper without a control connection.
func devNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
