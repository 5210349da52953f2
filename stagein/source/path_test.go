package source

import (
	"strings"
	"testing"
)

func TestCleanPath(t *testing.T) {
	for name, want := range map[string]string{
		"a": "a", "./a": "a", "a/": "a", "a//b": "a/b", "a/./b": "a/b", "./": "", ".": "", "": "", "a/.": "a", "..a/b..": "..a/b..", "a/...": "a/...",
	} {
		if got, err := CleanPath(name); got != want || err != nil {
			t.Errorf("CleanPath(%q) = %q, %v, want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"/", "/a", "..", "../a", "a/..", "a/../b", "a\x00b", strings.Repeat("n", 256), strings.Repeat("n/", 20000)} {
		if got, err := CleanPath(name); err == nil {
			t.Errorf("CleanPath(%.20q) = %q", name, got)
		}
	}
}
