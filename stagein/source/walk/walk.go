package walk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
	"golang.org/x/sync/errgroup"
)

// statBatch is how many names one worker looks at before another may help; it
// keeps a directory from being one worker's, for whom each name is a round trip.
const statBatch = 16

// Walk lists the tree under root, the root itself as "", sorted by path. It
// looks at workers things at a time. Symbolic links are items, never followed;
// further names of a file are hard links to the first. What is no file,
// directory or link is refused by name.
func Walk(ctx context.Context, fs source.FS, root string, workers int) ([]source.Item, error) {
	return WalkConfig{FS: fs, Root: root, Workers: workers}.Walk(ctx)
}

// WalkConfig is what is walked, and how.
type WalkConfig struct {
	FS      source.FS
	Root    string
	Workers int
	// Paths is what is looked at, with what lies below it; nil is all. What is
	// not there is left out.
	Paths map[string]bool
	// Select is what is wanted, nil for all: what it excludes is not looked at, nor
	// what lies below it, and what cannot be staged and is not wanted is left out.
	Select *source.Select
	// Skip is told of what cannot be read or staged, which is left out; nil
	// makes the walk fail. It is called by one goroutine at a time.
	Skip func(path string, err error)
	// Others look at something when all workers do, each at several things at a time.
	Others []Looker
}

// Walk lists as the function Walk does.
func (c WalkConfig) Walk(ctx context.Context) ([]source.Item, error) {
	w := &walker{fs: c.FS, root: c.Root, sel: c.Select, skip: c.Skip, near: make(chan struct{}, max(c.Workers, 1)), far: make(chan other, len(c.Others)*farRequests)}
	w.g, w.ctx = errgroup.WithContext(ctx)
	for range farRequests {
		for i, o := range c.Others {
			w.far <- other{o, i}
		}
	}
	info, err := c.FS.Lstat(c.Root)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Root, err)
	}
	w.items = append(w.items, found{Item: itemOf("", info)})
	begin := func() error { return w.list(c.Paths) }
	if c.Paths == nil || c.Paths[""] {
		begin = func() error { return w.dir("") }
	}
	if err := w.try(begin); err != nil {
		return nil, err
	}
	if err := w.g.Wait(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return w.finish(), nil
}

// list looks at paths, and at the directories that they lie in.
func (w *walker) list(paths map[string]bool) error {
	looked := make(map[string]bool)
	var want []string
	for p := range paths {
		below := false
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			below = below || paths[d]
		}
		for d := path.Dir(p); !below && d != "." && !looked[d]; d = path.Dir(d) {
			looked[d] = true
		}
		if !below {
			want = append(want, p)
		}
	}
	for d := range looked {
		if w.sel.Excludes(d) {
			continue
		}
		if err := w.one(d, false); err != nil {
			return err
		}
	}
	for _, p := range want {
		if w.sel.Excludes(p) {
			continue
		}
		if err := w.try(func() error { return w.one(p, true) }); err != nil {
			return err
		}
	}
	return nil
}

// one looks at a path that was listed, and if it is wanted whole at all below it.
func (w *walker) one(rel string, whole bool) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	it, err := look(w.fs, w.root, rel)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return w.leave(rel, err)
	}
	w.mu.Lock()
	w.items = append(w.items, it)
	w.mu.Unlock()
	if whole && it.Is(source.TypeDir) {
		return w.dir(rel)
	}
	return nil
}

// leave leaves something out because of err, or returns it.
func (w *walker) leave(rel string, err error) error {
	var refused *source.RefusedError
	if w.sel != nil && errors.As(err, &refused) && !w.sel.Wants(rel) {
		return nil
	}
	if w.ctx.Err() != nil {
		return err
	}
	if w.skip == nil {
		return source.Advise(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.skip(join(w.root, rel), err)
	return nil
}

// bare is err without the path that package os has put before it.
func bare(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

type found struct {
	source.Item
	id   fileID
	many bool // has other names
}

type fileID struct{ dev, ino uint64 }

type walker struct {
	fs   source.FS
	root string
	sel  *source.Select // nil is all
	g    *errgroup.Group
	ctx  context.Context
	skip func(path string, err error) // nil, or called with mu held
	near chan struct{}                // one for each worker that is at work
	far  chan other                   // those who may be asked now

	mu    sync.Mutex
	items []found // guarded by mu
}

// tryNear does f on another worker, if one is free.
func (w *walker) tryNear(f func() error) bool {
	select {
	case w.near <- struct{}{}:
	default:
		return false
	}
	w.g.Go(func() error {
		defer func() { <-w.near }()
		return f()
	})
	return true
}

// try does f on another worker if one is free, else here.
func (w *walker) try(f func() error) error {
	if w.tryNear(f) {
		return nil
	}
	return f()
}

func (w *walker) dir(rel string) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	names, err := w.fs.ReadDir(join(w.root, rel))
	if err != nil {
		return w.leave(rel, fmt.Errorf("%s: %w", join(w.root, rel), bare(err)))
	}
	return w.names(rel, names, true)
}

// names looks at names in a directory, and below them; others do, too, if they may.
func (w *walker) names(dir string, names []string, far bool) error {
	if w.sel != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return w.sel.Excludes(below(dir, name)) })
	}
	for len(names) > 0 {
		n := min(len(names), statBatch)
		batch := names[:n]
		switch {
		case w.tryNear(func() error { return w.batch(dir, batch) }):
		case far && len(w.far) > 0 && w.tryFar(sightOf(w.root, dir, names[:min(len(names), farBatch)]), self):
			n = min(len(names), farBatch)
		default:
			if err := w.batch(dir, batch); err != nil {
				return err
			}
		}
		names = names[n:]
	}
	return nil
}

// batch looks at names in a directory, and below them.
func (w *walker) batch(dir string, names []string) error {
	items := make([]found, 0, len(names))
	for _, name := range names {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		rel := below(dir, name)
		it, err := look(w.fs, w.root, rel)
		if err != nil {
			if err := w.leave(rel, err); err != nil {
				return err
			}
			continue
		}
		items = append(items, it)
	}
	return w.add(items, self)
}

// add takes note of what was seen by one, and goes on in the directories among it.
func (w *walker) add(items []found, by int) error {
	if w.sel != nil { // another has told what is in a directory
		items = slices.DeleteFunc(items, func(f found) bool { return w.sel.Excludes(f.Path) })
	}
	w.mu.Lock()
	w.items = append(w.items, items...)
	w.mu.Unlock()
	for i := range items {
		if !items[i].Is(source.TypeDir) {
			continue
		}
		d := items[i].Path
		s := Sight{Root: source.Name(w.root), Dir: source.Name(d), Mtime: items[i].Mtime}
		if w.tryNear(func() error { return w.dir(d) }) || w.tryFar(s, by) {
			continue
		}
		if err := w.dir(d); err != nil {
			return err
		}
	}
	return nil
}

// below is the path of what has a name in a directory.
func below(dir, name string) string { return strings.TrimPrefix(dir+"/"+name, "/") }

// look looks at what is at rel below root.
func look(fs source.FS, root, rel string) (found, error) {
	full := join(root, rel)
	info, err := fs.Lstat(full)
	if err != nil {
		return found{}, fmt.Errorf("%s: %w", full, err)
	}
	if _, err := source.CleanPath(rel); err != nil {
		return found{}, fmt.Errorf("%s: %w", full, err)
	}
	it := found{Item: itemOf(rel, info), id: fileID{info.Dev, info.Ino}}
	switch {
	case info.Is(source.TypeRegular):
		it.Size, it.many = info.Size, info.Nlink > 1
	case info.Is(source.TypeSymlink):
		if it.Target, err = fs.Readlink(full); err != nil {
			return found{}, fmt.Errorf("%s: %w", full, err)
		}
	case info.Is(source.TypeDir):
	default:
		return found{}, &source.RefusedError{Name: rel, Err: fmt.Errorf("%s: is %s, which cannot be staged: %w", full, source.TypeName(info.Mode), syscall.EINVAL)}
	}
	return it, nil
}

func itemOf(rel string, info source.Info) source.Item {
	return source.Item{Path: rel, Mode: info.Mode, UID: info.UID, GID: info.GID, Mtime: info.Mtime}
}

// finish sorts, and makes hard links of the further names of a file.
func (w *walker) finish() []source.Item {
	slices.SortFunc(w.items, func(a, b found) int { return strings.Compare(a.Path, b.Path) })
	first := make(map[fileID]string)
	items := make([]source.Item, len(w.items))
	for i, f := range w.items {
		if f.many {
			if p, ok := first[f.id]; ok {
				f.Hardlink, f.Size = p, 0
			} else {
				first[f.id] = f.Path
			}
		}
		items[i] = f.Item
	}
	return items
}

// join is filepath.Join for a clean base and a relative path.
func join(base, rel string) string {
	if rel == "" {
		return base
	}
	return filepath.Clean(base) + "/" + rel
}
