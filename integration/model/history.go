package model

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Event is a step that ran concurrently with others: its result, and its begin and end on one clock.
type Event struct {
	Worker     int
	Op         Op
	Got        syscall.Errno
	Start, End int64
}

// String returns the event on one line.
func (e Event) String() string {
	got := "ok"
	if e.Got != 0 {
		got = unix.ErrnoName(e.Got)
	}
	return fmt.Sprintf("%8d-%8d worker %d: %v: %s", e.Start, e.End, e.Worker, e.Op, got)
}

// Explain searches for an order of the events in which each returns its recorded result and the final tree is want.
// An event that ended before another began precedes it.
//
// A system call on names is not one event for a file system: the kernel looks the names up, one after the other, and
// then requests the change, mostly by names, but by inode for the source of a link. Here, each of these is a separate
// event. The kernel's decisions from look-ups alone may be wrong if others change the names meanwhile, in every file
// system with remote changes. The change itself must be atomic.
//
// The events may be open with O_EXCL, mkdir, rmdir, unlink, symlink, link, rename and lstat of names in directories
// that stay.
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

// search is a state of the search. Each worker runs its events in sequence.
type search struct {
	left   [][]Event // of each worker, in their order
	looked [][]found // results of the look-ups of each worker's event
	want   Tree
	seen   map[string]bool // states that cannot reach the end
}

// from reports whether the end can be reached from this state.
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

// next reports whether the first event of w may run next.
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

// try runs w's next step in each possible way.
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

// lookups returns the paths that are looked up before the change, if that matters.
func lookups(o Op) []string {
	switch o.Kind {
	case "rename":
		return []string{o.Path, o.To}
	case "link":
		return []string{o.Path}
	}
	return nil
}

// found is the result of a look-up; the zero value means no such name.
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

// inode finds an inode that has a name by its number, or returns nil.
func (f *FS) inode(id uint64) *inode {
	for _, p := range f.paths() {
		if i, _ := f.find(p, false); i.id == id {
			return i
		}
	}
	return nil
}

// outcomes returns the possible states after an event with its recorded result; none if the result is impossible.
func (f *FS) outcomes(e Event, looked []found) (all []*FS) {
	switch {
	case e.Op.Kind == "link":
		return f.linked(e, looked[0])
	case e.Op.Kind == "rename" && e.Got != 0 && refusedByLooks(e, looked):
		return []*FS{f}
	case e.Op.Kind == "rename" && e.Got == 0 && looked[0] == looked[1] && looked[0].id != 0:
		all = append(all, f) // the kernel sees two names of one file
	}
	c := f.Clone()
	got := c.Do(e.Op).Err
	clear(c.handles)
	if got == e.Got {
		all = append(all, c)
	}
	return all
}

// linked is outcomes for a link to the looked-up source.
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

// refusedByLooks reports whether the kernel can have refused a rename because of its look-ups.
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

// key identifies states with the same possible continuations.
func (s *search) key(f *FS) string {
	var b strings.Builder
	for w := range s.left {
		fmt.Fprintf(&b, "%d%v ", len(s.left[w]), s.looked[w])
	}
	for _, p := range f.paths() {
		i, _ := f.find(p, false)
		fmt.Fprintf(&b, "%q%d/%o ", p, i.id, i.mode) // the number alone does not tell which of two was made first
	}
	return b.String()
}
