package source

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
)

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
		{Select{Include: []string{"*.jpg"}}, "/a.jpg /a.jpg/b", "/ // /a.png"},
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

func FuzzSelect(f *testing.F) {
	f.Add("a/b.jpg", "*.jpg", "a/b.jpg")
	f.Add("x", "[", "")
	f.Add("../..", "a/*/[b-", "a/b")
	f.Add("/**", "0", "/")
	f.Add("//", "0", "0")
	f.Fuzz(func(t *testing.T, p, pattern, listed string) {
		s := Select{Include: []string{pattern}, Exclude: []string{pattern + "x"}}
		if s.Check() == nil {
			s.Wants(p)
		}
		s = Select{Paths: map[string]bool{listed: true}}
		in := items(p, p+"=f", "f")
		s.Filter(in, 1)
		s.Missing(in)
	})
}
