package walk

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/source"
)

func touch(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGlob(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"a/train-08.tar", "a/train-09.tar", "a/train-10.tar", "b/train-09.tar", "a/.train-99.tar", "a/val-1.tar", "c", "a/x\xff.tar"} {
		touch(t, filepath.Join(dir, n))
	}
	for _, c := range []struct{ pattern, want string }{
		{"a/train-*.tar", "a/train-08.tar a/train-09.tar a/train-10.tar"},
		{"*/train-09.tar", "a/train-09.tar b/train-09.tar"},
		{"a/train-{08..10}.tar", "a/train-08.tar a/train-09.tar a/train-10.tar"},
		{"{a..b}", ""}, // letters are no range
		{"a/train-{8..10}.tar", ""},
		{"a/[vt]*-1*.tar", "a/train-10.tar a/val-1.tar"},
		{"a/.train*", "a/.train-99.tar"},
		{"a/x?.tar", "a/x\xff.tar"},
		{"c/*", ""},
		{"nowhere/*", ""},
	} {
		got, err := Glob(source.OS{}, filepath.Join(dir, c.pattern))
		var names []string
		for _, g := range got {
			names = append(names, strings.TrimPrefix(g, dir+"/"))
		}
		if s := strings.Join(names, " "); s != c.want || (err == nil) != (c.want != "") {
			t.Errorf("Glob(%q) = %q, %v, want %q", c.pattern, s, err, c.want)
		}
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			t.Errorf("Glob(%q): %v, want ENOENT", c.pattern, err)
		}
	}
	if _, err := Glob(source.OS{}, "/[x"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a bad pattern: %v, want EINVAL", err)
	}
	for p, want := range map[string]bool{"/a/b": false, "/a/*.tar": true, "/a/{0..9}": true, "/a/{x}": false, "/[a": true} {
		if IsPattern(p) != want {
			t.Errorf("IsPattern(%q) = %v", p, !want)
		}
	}
}

func TestReadList(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []struct {
		text string
		want string // sorted, joined by |; "" is an error
	}{
		{"a\nb/c\n", "a|b/c"}, {"./a\r\n\n\nb/\n", "a|b"}, {"line\nfeed\x00b\x00", "b|line\nfeed"}, {"\xff", "\xff"},
		{"", ""}, {"\n\n", ""}, {"/abs", ""}, {"a/../b", ""},
	} {
		name := filepath.Join(dir, "list")
		if err := os.WriteFile(name, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadList(source.OS{}, name)
		var keys []string
		for k := range got {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		if s := strings.Join(keys, "|"); s != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%d: %q is %q, %v, want %q", i, c.text, s, err, c.want)
		}
	}
	if _, err := ReadList(source.OS{}, filepath.Join(dir, "none")); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no list: %v, want ENOENT", err)
	}
}

func FuzzList(f *testing.F) {
	f.Add("*.jpg", "a/b.jpg\n")
	f.Add("[", "\x00")
	f.Add("a/*/[b-", "//a")
	f.Fuzz(func(t *testing.T, pattern, list string) {
		if paths, err := parseList("list", list); err == nil {
			for l := range paths {
				if c, err := source.CleanPath(l); err != nil || c != l {
					t.Errorf("listed %q is not clean", l)
				}
			}
		}
		IsPattern(pattern)
		if len(pattern) < 64 {
			expand(pattern, nil)
		}
	})
}
