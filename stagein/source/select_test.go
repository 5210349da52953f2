package source

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
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
		got, err := Glob(OS{}, filepath.Join(dir, c.pattern))
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
	if _, err := Glob(OS{}, "/[x"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a bad pattern: %v, want EINVAL", err)
	}
	for p, want := range map[string]bool{"/a/b": false, "/a/*.tar": true, "/a/{0..9}": true, "/a/{x}": false, "/[a": true} {
		if IsPattern(p) != want {
			t.Errorf("IsPattern(%q) = %v", p, !want)
		}
	}
}

func TestSelectWants(t *testing.T) {
	listed := map[string]bool{"a/b.jpg": true, "c": true}
	for _, c := range []struct {
		s     Select
		yes   string
		never string
	}{
		{Select{}, "a b/c", ""},
		{Select{Paths: listed}, "a/b.jpg c c/d/e", "a a/b b cc a/b.jpg2"},
		{Select{Paths: map[string]bool{"": true}}, "a b/c", ""},
		{Select{Include: []string{"*.jpg"}}, "a.jpg x/y.jpg x.jpg/below", "a.png jpg"},
		{Select{Include: []string{"train/*"}}, "train/x train/x/y", "train other/train/x"},
		{Select{Exclude: []string{"*.tmp", "old"}}, "a b/c", "a.tmp b/c.tmp old old/x a/old/x"},
		{Select{Include: []string{"*.jpg"}, Exclude: []string{"x"}}, "a.jpg", "x/a.jpg b.png"},
	} {
		for _, p := range strings.Fields(c.yes) {
			if !c.s.Wants(p) {
				t.Errorf("%+v does not want %q", c.s, p)
			}
		}
		for _, p := range strings.Fields(c.never) {
			if c.s.Wants(p) {
				t.Errorf("%+v wants %q", c.s, p)
			}
		}
	}
	for _, bad := range []string{"", "["} {
		if err := (&Select{Include: []string{bad}}).Check(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("pattern %q: %v, want EINVAL", bad, err)
		}
	}
}

func items(specs ...string) []Item {
	var all []Item
	for _, s := range specs {
		it := Item{Path: s, Mode: TypeRegular, Size: 1}
		if d, ok := strings.CutSuffix(s, "/"); ok {
			it = Item{Path: d, Mode: TypeDir}
		}
		if p, to, ok := strings.Cut(s, "="); ok {
			it = Item{Path: p, Mode: TypeRegular, Hardlink: to}
		}
		all = append(all, it)
	}
	return all
}

func describe(all []Item) string {
	var b []string
	for _, it := range all {
		s := it.Path
		if it.Is(TypeDir) {
			s += "/"
		}
		if it.Hardlink != "" {
			s += "=" + it.Hardlink
		}
		b = append(b, s)
	}
	return strings.Join(b, " ")
}

func TestFilter(t *testing.T) {
	tree := []string{"/", "a/", "a/1.jpg", "a/1.txt", "b/", "b/deep/", "b/deep/2.jpg", "empty/"}
	links := []string{"f", "g=f", "h=f", "z=nothing"}
	for _, c := range []struct {
		name  string
		s     Select
		limit int64
		in    []string
		want  string
	}{
		{"all", Select{}, 0, tree, "/ a/ a/1.jpg a/1.txt b/ b/deep/ b/deep/2.jpg empty/"},
		{"parents stay, empty ones go", Select{Include: []string{"*.jpg"}}, 0, tree, "/ a/ a/1.jpg b/ b/deep/ b/deep/2.jpg"},
		{"listed directory", Select{Paths: map[string]bool{"b": true}}, 0, tree, "/ b/ b/deep/ b/deep/2.jpg"},
		{"excluded directory", Select{Exclude: []string{"b"}}, 0, tree, "/ a/ a/1.jpg a/1.txt empty/"},
		{"limit", Select{}, 2, tree, "/ a/ a/1.jpg a/1.txt"},
		{"limit and pattern", Select{Include: []string{"*.jpg"}}, 1, tree, "/ a/ a/1.jpg"},
		{"links", Select{}, 0, links, "f g=f h=f z=nothing"},
		{"a link without its file is the file", Select{Exclude: []string{"f"}}, 0, links, "g h=g z=nothing"},
		{"the last name", Select{Paths: map[string]bool{"h": true}}, 0, links, "h"},
	} {
		in := items(c.in...)
		got := c.s.Filter(in, c.limit)
		if s := describe(got); s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
		for _, it := range got {
			if it.Is(TypeRegular) && it.Hardlink == "" && it.Size != 1 {
				t.Errorf("%s: %q has %d bytes", c.name, it.Path, it.Size)
			}
		}
	}
	s := Select{Paths: map[string]bool{"a/1.jpg": true, "b": true, "c": true, "b/deep/2.jpg": true, "d/e": true}}
	if got := s.Missing(items(tree...)); !slices.Equal(got, []string{"c", "d/e"}) {
		t.Errorf("missing are %q, want c and d/e", got)
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
		got, err := ReadList(OS{}, name)
		var keys []string
		for k := range got {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		if s := strings.Join(keys, "|"); s != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%d: %q is %q, %v, want %q", i, c.text, s, err, c.want)
		}
	}
	if _, err := ReadList(OS{}, filepath.Join(dir, "none")); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no list: %v, want ENOENT", err)
	}
}

func FuzzSelect(f *testing.F) {
	f.Add("a/b.jpg", "*.jpg", "a/b.jpg\n")
	f.Add("x", "[", "\x00")
	f.Add("../..", "a/*/[b-", "//a")
	f.Fuzz(func(t *testing.T, p, pattern, list string) {
		s := Select{Include: []string{pattern}, Exclude: []string{pattern + "x"}}
		if s.Check() == nil {
			s.Wants(p)
		}
		if paths, err := parseList("list", list); err == nil {
			for l := range paths {
				if c, err := CleanPath(l); err != nil || c != l {
					t.Errorf("listed %q is not clean", l)
				}
			}
			s = Select{Paths: paths}
			s.Filter(items(p, p+"=f", "f"), 1)
		}
		IsPattern(pattern)
		if len(pattern) < 64 {
			expand(pattern, nil)
		}
	})
}
