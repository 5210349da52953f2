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

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// statBatch is how many names a worker stats in a row. It bounds how long one worker holds a directory: each name is a
// round trip.
const statBatch = 16

// Config configures a walk. Symbolic links are items and are never followed; further names of a file become hard
// links to the first.
type Config struct {
	FS      source.FS
	Root    string
	Workers int
	// Paths limits the walk to these paths and everything below them; nil: no limit. Paths that do not exist are left
	// out.
	Paths map[string]bool
	// Select limits the walk; nil: no limit. Excluded directories are not entered, and an item that cannot be staged is
	// ignored unless it is selected.
	Select *source.Select
	// Skip receives each item that cannot be read or staged and is left out; with a nil Skip the walk fails. It is
	// never called concurrently.
	Skip func(path string, err error)
	// Remotes stat names while all workers of this node are busy.
	Remotes []Remote
}

// Run lists the tree below Root, sorted.
func (c Config) Run(ctx context.Context) ([]source.Item, error) {
	w := &walker{fs: c.FS, root: c.Root, sel: c.Select, skip: c.Skip, local: make(chan struct{}, max(c.Workers, 1)), remotes: make(chan remote, len(c.Remotes)*requestsPerRemote)}
	w.g, w.ctx = errgroup.WithContext(ctx)
	for range requestsPerRemote {
		for i, o := range c.Remotes {
			w.remotes <- remote{o, i}
		}
	}
	info, err := c.FS.Lstat(c.Root)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Root, err)
	}
	w.items = append(w.items, entry{Item: itemOf("", info)})
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

// list walks paths and their parent directories.
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

// one walks a listed path, and everything below it if whole is set.
func (w *walker) one(rel string, whole bool) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	it, err := look(w.fs, w.root, rel)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return w.skipOrFail(rel, err)
	}
	w.mu.Lock()
	w.items = append(w.items, it)
	w.mu.Unlock()
	if whole && it.Is(source.TypeDir) {
		return w.dir(rel)
	}
	return nil
}

// skipOrFail leaves an item out because of err, or returns err if the walk has no Skip.
func (w *walker) skipOrFail(rel string, err error) error {
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

// bare returns err without the path that package os adds.
func bare(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

type entry struct {
	source.Item
	id       fileID
	multiple bool // has several names
}

type fileID struct{ dev, ino uint64 }

type walker struct {
	fs      source.FS
	root    string
	sel     *source.Select // nil: everything
	g       *errgroup.Group
	ctx     context.Context
	skip    func(path string, err error) // may be nil; called with mu held
	local   chan struct{}                // holds a token for each busy worker of this node
	remotes chan remote                  // free remotes, each once for every further request that it may have

	mu    sync.Mutex
	items []entry // guarded by mu
}

// tryLocal runs f on another worker of this node if one is free.
func (w *walker) tryLocal(f func() error) bool {
	select {
	case w.local <- struct{}{}:
	default:
		return false
	}
	w.g.Go(func() error {
		defer func() { <-w.local }()
		return f()
	})
	return true
}

// try runs f on another worker if one is free, otherwise on this one.
func (w *walker) try(f func() error) error {
	if w.tryLocal(f) {
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
		return w.skipOrFail(rel, fmt.Errorf("%s: %w", join(w.root, rel), bare(err)))
	}
	return w.names(rel, names, true)
}

// names walks names in a directory and everything below them, on this node or, if mayAsk is set, on a remote.
func (w *walker) names(dir string, names []string, mayAsk bool) error {
	if w.sel != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return w.sel.Excludes(below(dir, name)) })
	}
	for len(names) > 0 {
		n := min(len(names), statBatch)
		batch := names[:n]
		switch {
		case w.tryLocal(func() error { return w.batch(dir, batch) }):
		case mayAsk && len(w.remotes) > 0 && w.tryRemote(requestFor(w.root, dir, names[:min(len(names), remoteBatch)]), thisNode):
			n = min(len(names), remoteBatch)
		default:
			if err := w.batch(dir, batch); err != nil {
				return err
			}
		}
		names = names[n:]
	}
	return nil
}

// batch walks names in a directory and everything below them.
func (w *walker) batch(dir string, names []string) error {
	items := make([]entry, 0, len(names))
	for _, name := range names {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		rel := below(dir, name)
		it, err := look(w.fs, w.root, rel)
		if err != nil {
			if err := w.skipOrFail(rel, err); err != nil {
				return err
			}
			continue
		}
		items = append(items, it)
	}
	return w.add(items, thisNode)
}

// add records the entries that node by found, and walks the directories among them.
func (w *walker) add(items []entry, by int) error {
	if w.sel != nil { // a remote lists a directory without the selection
		items = slices.DeleteFunc(items, func(f entry) bool { return w.sel.Excludes(f.Path) })
	}
	w.mu.Lock()
	w.items = append(w.items, items...)
	w.mu.Unlock()
	for i := range items {
		if !items[i].Is(source.TypeDir) {
			continue
		}
		d := items[i].Path
		s := Request{Root: source.Name(w.root), Dir: source.Name(d), Mtime: items[i].Mtime}
		if w.tryLocal(func() error { return w.dir(d) }) || w.tryRemote(s, by) {
			continue
		}
		if err := w.dir(d); err != nil {
			return err
		}
	}
	return nil
}

// below returns the path of a name in a directory.
func below(dir, name string) string { return strings.TrimPrefix(dir+"/"+name, "/") }

// look reads the attributes of rel below root.
func look(fs source.FS, root, rel string) (entry, error) {
	full := join(root, rel)
	info, err := fs.Lstat(full)
	if err != nil {
		return entry{}, fmt.Errorf("%s: %w", full, err)
	}
	if _, err := source.CleanPath(rel); err != nil {
		return entry{}, fmt.Errorf("%s: %w", full, err)
	}
	it := entry{Item: itemOf(rel, info), id: fileID{info.Dev, info.Ino}}
	switch {
	case info.Is(source.TypeRegular):
		it.Size, it.multiple = info.Size, info.Nlink > 1
	case info.Is(source.TypeSymlink):
		if it.Target, err = fs.Readlink(full); err != nil {
			return entry{}, fmt.Errorf("%s: %w", full, err)
		}
	case info.Is(source.TypeDir):
	default:
		return entry{}, &source.RefusedError{Name: rel, Err: fmt.Errorf("%s: is %s, which cannot be staged: %w", full, source.TypeName(info.Mode), syscall.EINVAL)}
	}
	return it, nil
}

func itemOf(rel string, info source.Info) source.Item {
	return source.Item{Path: rel, Mode: info.Mode, UID: info.UID, GID: info.GID, Mtime: info.Mtime}
}

// finish sorts the items, and turns further names of a file into hard links.
func (w *walker) finish() []source.Item {
	slices.SortFunc(w.items, func(a, b entry) int { return strings.Compare(a.Path, b.Path) })
	first := make(map[fileID]string)
	items := make([]source.Item, len(w.items))
	for i, f := range w.items {
		if f.multiple {
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
