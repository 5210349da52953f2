package soak

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/home"
)

// expected compares the counts of a check with the workers' records.
func expected(r home.CheckResult, ws []*worker, extra tally) error {
	dirs, names, files := 1+extra.dirs, extra.names, extra.files
	for _, w := range ws {
		seen := make(map[*file]bool)
		for _, o := range w.names {
			names++ // the root directory holds the name of the worker's root
			if o.dir {
				dirs++
			} else if !seen[o.file] {
				seen[o.file] = true
				files++
			}
		}
	}
	if r.Directories != dirs || r.Files != files || r.Names != names || r.Orphans != 0 || len(ws) == 0 && r.Objects != 0 {
		return fmt.Errorf("there are %+v, want %d directories, %d files, %d names and no orphans", r, dirs, files, names)
	}
	return nil
}

// clean returns an error if the stores contain leftovers.
func (j *testJob) clean() error {
	for _, x := range j.nodes {
		for _, pattern := range []string{"objects/*/*", "stage/*"} {
			left, err := filepath.Glob(filepath.Join(x.job.Dirs.Store[0], pattern))
			if err != nil || len(left) > 0 {
				return fmt.Errorf("node %d keeps %q (%w)", x.id, left[:min(len(left), 5)], errors.Join(err, errLeft))
			}
		}
	}
	return nil
}

var errLeft = errors.New("leftovers")

// seen is the object found at a path.
type seen struct {
	dir   bool
	ino   uint64
	nlink uint64
	size  int64
}

// verify compares everything, as seen by node i, with the worker's records. Afterwards nothing is in doubt.
func (w *worker) verify(i int) {
	w.t.Helper()
	tree := w.look(i)
	for _, d := range w.doubts {
		switch {
		case fits(d.before, tree):
		case fits(d.after, tree):
			d.apply()
		default:
			w.j.found(&w.j.verdict.lost, "%s: %s was not answered, and has happened by half: %s", w.root, d.what, d.found(tree))
		}
	}
	w.doubts = nil
	inos, links := make(map[*file]uint64), make(map[*file]uint64)
	for p, o := range w.names {
		got, ok := tree[p]
		if !ok || got.dir != o.dir {
			w.j.found(&w.j.verdict.lost, "%s: %q is acknowledged, and is not there (%+v)", w.root, p, got)
			continue
		}
		if o.dir {
			continue
		}
		if known := inos[o.file]; known != 0 && known != got.ino || o.file.ino != 0 && o.file.ino != got.ino {
			w.j.found(&w.j.verdict.wrong, "%s: %q is another file than it was", w.root, p)
		}
		inos[o.file], o.file.ino = got.ino, got.ino
		links[o.file]++
	}
	for p, got := range tree {
		o, ok := w.names[p]
		if !ok {
			w.j.found(&w.j.verdict.wrong, "%s: %q was never acknowledged, or is removed, and is there", w.root, p)
		} else if o.file != nil && links[o.file] != got.nlink {
			w.j.found(&w.j.verdict.wrong, "%s: %q has %d links, want %d", w.root, p, got.nlink, links[o.file])
		}
	}
	w.contents(i, tree)
}

// look returns the worker's tree as seen by node i.
func (w *worker) look(i int) map[string]seen {
	w.t.Helper()
	tree, top := make(map[string]seen), w.j.scratch(i, w.root)
	err := filepath.WalkDir(top, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return errors.New("no stat")
		}
		rel, err := filepath.Rel(top, p)
		if rel == "." {
			rel = ""
		}
		tree[rel] = seen{info.IsDir(), st.Ino, uint64(st.Nlink), info.Size()}
		return err
	})
	if err != nil {
		w.t.Fatalf("%s: %v", w.root, err)
	}
	return tree
}

// fits reports whether the tree contains all of side.
func fits(side map[string]object, tree map[string]seen) bool {
	for p, o := range side {
		got, ok := tree[p]
		if ok != o.there() || ok && (got.dir != o.dir || o.file != nil && o.file.ino != 0 && o.file.ino != got.ino) {
			return false
		}
	}
	return true
}

func (d doubt) found(tree map[string]seen) string {
	var s []string
	for p := range d.before {
		got, ok := tree[p]
		s = append(s, fmt.Sprintf("%s: %v %+v", p, ok, got))
	}
	slices.Sort(s)
	return fmt.Sprint(s)
}

// contents compares the content of the files. A file with unanswered writes is removed, as its content is unknown.
func (w *worker) contents(i int, tree map[string]seen) {
	w.t.Helper()
	for p, o := range w.names {
		if o.file == nil || w.t.Failed() {
			continue
		}
		full := w.j.scratch(i, w.at(p))
		b, err := os.ReadFile(full)
		if err != nil || int64(len(b)) != tree[p].size {
			w.j.found(&w.j.verdict.lost, "%s: %q has %d bytes of %d: %v", w.root, p, len(b), tree[p].size, err)
			continue
		}
		if err := o.file.compare(b); err != nil {
			w.j.found(&w.j.verdict.wrong, "%s: %q: %v", w.root, p, err)
		}
		if !o.file.unsure() {
			continue
		}
		if err := os.Remove(full); err != nil {
			w.t.Errorf("%s: %v", path.Join(w.root, p), err)
		}
		delete(w.names, p)
	}
}

// compare returns nil if b is a possible content of the file.
func (f *file) compare(b []byte) error {
	sure := len(f.blocks)
	for sure > 0 && f.blocks[sure-1].have == 0 {
		sure--
	}
	if len(b) < sure*blockSize || len(b) > len(f.blocks)*blockSize {
		return fmt.Errorf("%d bytes, want %d of %d blocks", len(b), sure, len(f.blocks))
	}
	for i, want := range f.blocks {
		if err := want.compare(f.id, i, b[min(i*blockSize, len(b)):min((i+1)*blockSize, len(b))]); err != nil {
			return err
		}
	}
	return nil
}
