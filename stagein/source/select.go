package source

import (
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Select describes which items of a source are wanted. The zero value selects all.
type Select struct {
	// Paths are the wanted files, and directories with all their content; nil: no list.
	Paths map[string]bool
	// Include and Exclude are patterns as in path.Match. A pattern without a slash matches names, one with a slash
	// matches paths; a match of a directory includes everything below it.
	Include []string
	Exclude []string
}

// All reports whether everything is selected.
func (s *Select) All() bool { return s.Paths == nil && len(s.Include)+len(s.Exclude) == 0 }

// Check reports invalid patterns.
func (s *Select) Check() error {
	for _, p := range slices.Concat(s.Include, s.Exclude) {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return fmt.Errorf("%q is not a valid pattern: %w", p, syscall.EINVAL)
		}
	}
	return nil
}

// Wants reports whether the item at p itself is selected. An unselected directory may still be needed as a parent.
func (s *Select) Wants(p string) bool {
	return (s.Paths == nil || s.listed(p)) && (len(s.Include) == 0 || matches(s.Include, p)) && !matches(s.Exclude, p)
}

// Excludes reports whether everything at and below p is excluded; false for a nil s.
func (s *Select) Excludes(p string) bool { return s != nil && matches(s.Exclude, p) }

// Ignores reports whether a member that cannot be staged is not selected, judging by its raw name; false for a nil s.
// Leading slashes and empty or dot components are ignored.
func (s *Select) Ignores(name string) bool {
	if s == nil {
		return false
	}
	var parts []string
	for c := range strings.SplitSeq(name, "/") {
		if c != "" && c != "." {
			parts = append(parts, c)
		}
	}
	return !s.Wants(strings.Join(parts, "/"))
}

func (s *Select) listed(p string) bool {
	for at := p; ; {
		if s.Paths[at] {
			return true
		}
		i := strings.LastIndexByte(at, '/')
		if i < 0 {
			return s.Paths[""]
		}
		at = at[:i]
	}
}

// matches reports whether a pattern matches p or a directory that p lies in.
func matches(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pat string) bool {
		for at := range upwards(p) {
			name := at
			if !strings.Contains(pat, "/") {
				name = path.Base(at)
			}
			if ok, _ := path.Match(pat, name); ok {
				return true
			}
		}
		return false
	})
}

// upwards yields p and the directories that contain it, innermost first, without the root. It ends for any p, also for
// an absolute one, which path.Dir leaves at "/".
func upwards(p string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for at := p; at != "" && at != "." && at != "/" && yield(at); {
			at = path.Dir(at)
		}
	}
}

// Filter keeps the selected items, at most limit files (0: no limit), and their parent directories. A hard link to a
// dropped file becomes the file, or a link to another kept name of it.
func (s *Select) Filter(items []Item, limit int64) []Item {
	if s.All() && limit <= 0 {
		return items
	}
	keep := make([]bool, len(items))
	dirs := make(map[string]bool)
	files := int64(0)
	for i := range items {
		it := &items[i]
		if it.Path == "" || !s.Wants(it.Path) || limit > 0 && (files >= limit || it.Is(TypeDir)) {
			continue
		}
		keep[i] = true
		if !it.Is(TypeDir) {
			files++
		}
		for d := range upwards(path.Dir(it.Path)) {
			if dirs[d] {
				break
			}
			dirs[d] = true
		}
	}
	first := firstNames(items, keep)
	var kept []Item
	for i, it := range items {
		if !keep[i] && it.Path != "" && !(it.Is(TypeDir) && dirs[it.Path]) {
			continue
		}
		if it.Hardlink != "" {
			it = relink(it, first)
		}
		kept = append(kept, it)
	}
	return kept
}

// named is a file with hard links and its first kept name.
type named struct {
	file Item
	path string
}

// firstNames finds, for each file that a kept item links to, its first kept name.
func firstNames(items []Item, keep []bool) map[string]named {
	targets := make(map[string]named)
	for i := range items {
		if h := items[i].Hardlink; h != "" && keep[i] {
			targets[h] = named{}
		}
	}
	for i := range items {
		it := &items[i]
		to, ok := targets[it.Path]
		if !ok || it.Hardlink != "" {
			continue
		}
		to.file = *it
		if keep[i] {
			to.path = it.Path
		}
		targets[it.Path] = to
	}
	for i := range items {
		h := items[i].Hardlink
		if to, ok := targets[h]; ok && keep[i] && to.path == "" {
			to.path = items[i].Path
			targets[h] = to
		}
	}
	return targets
}

// relink makes a kept link refer to a kept item. A link to an unknown file stays as it is, and fails later.
func relink(it Item, first map[string]named) Item {
	to := first[it.Hardlink]
	if to.file.Path == "" {
		return it
	}
	if to.path != it.Path {
		it.Hardlink = to.path
		return it
	}
	f := to.file
	f.Path = it.Path
	return f
}

// Missing returns the listed paths that are not in items and have no item below them, sorted.
func (s *Select) Missing(items []Item) []string {
	m := s.NewMissing()
	for i := range items {
		m.See(items[i].Path)
	}
	return m.Left()
}

// Missing collects listed paths that were not found.
type Missing struct {
	sel  *Select
	seen map[string]bool
}

// NewMissing starts with all paths that s lists and does not exclude.
func (s *Select) NewMissing() *Missing { return &Missing{s, make(map[string]bool)} }

// See records an item.
func (m *Missing) See(p string) {
	if m.sel.Paths == nil {
		return
	}
	for at := range upwards(p) {
		if m.sel.Paths[at] {
			m.seen[at] = true
		}
	}
}

// Left returns the listed paths that were not seen and had nothing seen below them, sorted.
func (m *Missing) Left() []string {
	var all []string
	for p := range m.sel.Paths {
		if p != "" && !m.seen[p] && !m.sel.Excludes(p) {
			all = append(all, p)
		}
	}
	slices.Sort(all)
	return all
}
