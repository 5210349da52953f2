package model

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Event is a step that ran while others did: what it returned, and when it began
// and ended, on one clock.
type Event struct {
	Worker     int
	Op         Op
	Got        syscall.Errno
	Start, End int64
}

// String is the event on one line.
func (e Event) String() string {
	got := "ok"
	if e.Got != 0 {
		got = unix.ErrnoName(e.Got)
	}
	return fmt.Sprintf("%8d-%8d worker %d: %v: %s", e.Start, e.End, e.Worker, e.Op, got)
}

// Explain searches an order of the events in which each returns what it
// returned and at whose end the tree is want. An event that ended before another
// one began comes before it.
//
// A system call on names is not one event for a file system: the kernel looks
// the names up, one after the other, and then asks for the change, by names for
// most, by the inode for the source of a link. Each of these is an event of its
// own here. What the kernel decides by the look-ups alone it may decide wrongly
// if others change the names meanwhile: that is so in every file system that
// others can change. The change itself has to be atomic.
//
// The events may be open with O_EXCL, mkdir, rmdir, unlink, symlink, link,
// rename and lstat of names in directories that stay.
func Explain(start *FS, events []Event, want Tree) bool {
	s := search{want: want, seen: make(map[string]bool)}
	for _, e := range events {
		for e.Worker >= len(s.left) {
			s.left = append(s.left, nil)
		}
		s.left[e.Worker] = append(s.left[e.Worker], e)
	}
	s.looked = make([][]found, len(s.left))
	return s.from(start)
}

// search is a state of the search. Workers do one thing after the other.
type search struct {
	left   [][]Event // of each worker, in their order
	looked [][]found // what the look-ups of each worker's event found
	want   Tree
	seen   map[string]bool // states from which there is no way
}

// from reports whether there is a way from this state to the end.
func (s *search) from(f *FS) bool {
	done := true
	for w := range s.left {
		done = done && len(s.left[w]) == 0
	}
	if done {
		return s.want.differences(f.Tree()) == nil
	}
	key := s.key(f)
	if s.seen[key] {
		return false
	}
	for w := range s.left {
		if s.next(w) && s.try(f, w) {
			return true
		}
	}
	s.seen[key] = true
	return false
}

// next reports whether the first event of w may be the next one to go on.
func (s *search) next(w int) bool {
	if len(s.left[w]) == 0 {
		return false
	}
	for v := range s.left {
		if v != w && len(s.left[v]) > 0 && s.left[v][0].End < s.left[w][0].Start {
			return false
		}
	}
	return true
}

// try lets w go on in each way it can.
func (s *search) try(f *FS, w int) bool {
	e, looked := s.left[w][0], s.looked[w]
	path := lookups(e.Op)
	if len(looked) < len(path) {
		s.looked[w] = append(slices.Clone(looked), f.lookup(path[len(looked)]))
		ok := s.from(f)
		s.looked[w] = looked
		return ok
	}
	for _, after := range f.outcomes(e, looked) {
		s.left[w], s.looked[w] = s.left[w][1:], nil
		if s.from(after) {
			return true
		}
		s.left[w], s.looked[w] = append([]Event{e}, s.left[w]...), looked
	}
	return false
}

// lookups are the paths that are looked up before the change, where that
// matters.
func lookups(o Op) []string {
	switch o.Kind {
	case "rename":
		return []string{o.Path, o.To}
	case "link":
		return []string{o.Path}
	}
	return nil
}

// found is what a look-up told; the zero value is that there is no such name.
type found struct {
	id  uint64
	dir bool
}

func (f *FS) lookup(path string) found {
	i, no := f.find(path, false)
	if no != 0 {
		return found{}
	}
	return found{i.id, i.dir()}
}

// inode finds what has a name by its number, or nil.
func (f *FS) inode(id uint64) *inode {
	for _, p := range f.paths() {
		if i, _ := f.find(p, false); i.id == id {
			return i
		}
	}
	return nil
}

// outcomes are the states after an event that returned what it did; none if it
// cannot have.
func (f *FS) outcomes(e Event, looked []found) (all []*FS) {
	switch {
	case e.Op.Kind == "link":
		return f.linked(e, looked[0])
	case e.Op.Kind == "rename" && e.Got != 0 && refusedByLooks(e, looked):
		return []*FS{f}
	case e.Op.Kind == "rename" && e.Got == 0 && looked[0] == looked[1] && looked[0].id != 0:
		all = append(all, f) // two names of one file, as the kernel sees it
	}
	c := f.Clone()
	got := c.Do(e.Op).Err
	clear(c.handles)
	if got == e.Got {
		all = append(all, c)
	}
	return all
}

// linked is outcomes of a link to what was found.
func (f *FS) linked(e Event, source found) []*FS {
	there := f.lookup(e.Op.To) != found{}
	c := f.Clone()
	i := c.inode(source.id)
	possible := false
	switch e.Got {
	case 0:
		possible = i != nil && !i.dir() && !there
	case syscall.EEXIST:
		possible = source.id != 0 && there
	case syscall.ENOENT:
		possible = i == nil
	case syscall.EPERM:
		possible = source.dir
	}
	if !possible {
		return nil
	}
	if e.Got == 0 {
		p, _ := c.walk(e.Op.To, false)
		i.nlink++
		p.enter(i)
	}
	return []*FS{c}
}

// refusedByLooks reports whether the kernel can have refused a rename by what it
// found.
func refusedByLooks(e Event, looked []found) bool {
	switch {
	case looked[0].id == 0:
		return e.Got == syscall.ENOENT
	case looked[1].id == 0:
		return e.Got == syscall.ENOENT && e.Op.Flags == unix.RENAME_EXCHANGE
	case e.Got == syscall.EEXIST:
		return e.Op.Flags == unix.RENAME_NOREPLACE
	case e.Got == syscall.EISDIR:
		return e.Op.Flags == 0 && !looked[0].dir && looked[1].dir
	case e.Got == syscall.ENOTDIR:
		return e.Op.Flags == 0 && looked[0].dir && !looked[1].dir
	}
	return false
}

// key tells states apart from which not the same can follow.
func (s *search) key(f *FS) string {
	var b strings.Builder
	for w := range s.left {
		fmt.Fprintf(&b, "%d%v ", len(s.left[w]), s.looked[w])
	}
	for _, p := range f.paths() {
		i, _ := f.find(p, false)
		fmt.Fprintf(&b, "%q%d/%o ", p, i.id, i.mode) // which of two was made first, its number does not tell
	}
	return b.String()
}
