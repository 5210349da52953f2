package walk

import (
	"context"
	"fmt"
	"path"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Several look at a tree together: one walks, and has others look at what it has no
// worker for. What they do not tell, whatever the reason, the one who walks looks at
// itself, so that it alone decides what is wrong with the source, and which names are
// of one file: the numbers of devices are a machine's own. A directory that another
// knows with another time of modification is not the same: something is not mounted
// there, or what it remembers is old. So what is in a directory is told by another one
// than who has seen it.

const (
	// farBatch is how many names another is asked for at once.
	farBatch = 64
	// farRequests is how many requests each of the others has at a time.
	farRequests = 4
	// lookWorkers is how many things are looked at at a time for one request.
	lookWorkers = 8
	// maxLook is how large a directory another looks at whole, in names.
	maxLook = 1024
)

// Sight is what another is asked to look at: names in a directory, or all that is
// in it if there are none.
type Sight struct {
	Root  source.Name   `json:"root"`
	Dir   source.Name   `json:"dir,omitempty"` // relative to Root
	Names []source.Name `json:"names,omitempty"`
	// Mtime is the directory's, of which all is asked for.
	Mtime metadata.Time `json:"mtime,omitempty"`
}

func sightOf(root, dir string, names []string) Sight {
	s := Sight{Root: source.Name(root), Dir: source.Name(dir), Names: make([]source.Name, len(names))}
	for i, name := range names {
		s.Names[i] = source.Name(name)
	}
	return s
}

// Seen is what another has seen, and the names that are left to the one who walks.
type Seen struct {
	Items []source.Item `json:"items,omitempty"`
	Left  []source.Name `json:"left,omitempty"`
	// Unread says that the directory was not looked at: it is too large, is another
	// one here, or could not be read.
	Unread bool `json:"unread,omitempty"`
}

// Looker has another look.
type Looker func(ctx context.Context, s Sight) (Seen, error)

// Look looks for another who walks.
func (s Sight) Look(ctx context.Context, fs source.FS) (Seen, error) {
	names := make([]string, len(s.Names))
	for i, name := range s.Names {
		names[i] = string(name)
	}
	may := true
	if len(names) == 0 {
		names, may = s.list(fs)
	}
	if !may || len(names) > maxLook {
		return Seen{Unread: true}, nil
	}
	all := make([]found, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lookWorkers)
	for i, name := range names {
		g.Go(func() error {
			all[i], _ = look(fs, string(s.Root), below(string(s.Dir), name)) // what is wrong is said by who walks
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return Seen{}, err
	}
	var seen Seen
	for i := range all {
		if all[i].Mode == 0 || all[i].many {
			seen.Left = append(seen.Left, source.Name(names[i]))
		} else {
			seen.Items = append(seen.Items, all[i].Item)
		}
	}
	return seen, nil
}

// list is the names in the directory, if it is the one that is meant.
func (s *Sight) list(fs source.FS) (names []string, ok bool) {
	dir := join(string(s.Root), string(s.Dir))
	info, err := fs.Lstat(dir)
	if err != nil || info.Mtime != s.Mtime {
		return nil, false
	}
	names, err = fs.ReadDir(dir)
	return names, err == nil
}

// check refuses what cannot have been seen.
func (n *Seen) check(s *Sight) error {
	if len(s.Names) > 0 && !n.Unread && len(n.Items)+len(n.Left) != len(s.Names) {
		return fmt.Errorf("%d names of %d: %w", len(n.Items)+len(n.Left), len(s.Names), syscall.EPROTO)
	}
	dir := path.Clean(string(s.Dir)) // "." is the root
	for i := range n.Items {
		it := &n.Items[i]
		clean, err := source.CleanPath(it.Path)
		if err != nil || clean != it.Path || clean == "" || path.Dir(clean) != dir || it.Size < 0 ||
			!it.Is(source.TypeRegular) && !it.Is(source.TypeDir) && !it.Is(source.TypeSymlink) {
			return fmt.Errorf("%.256q in %.256q: %w", it.Path, s.Dir, syscall.EPROTO)
		}
	}
	for _, name := range n.Left {
		if clean, err := source.CleanPath(string(name)); err != nil || clean != string(name) || path.Base(clean) != clean {
			return fmt.Errorf("name %.256q: %w", name, syscall.EPROTO)
		}
	}
	return nil
}

// other is one of those who look, too.
type other struct {
	look Looker
	n    int // of the others; self is no number of theirs
}

// self is the one who walks.
const self = -1

// tryFar has another look, if one may be asked, other than by.
func (w *walker) tryFar(s Sight, by int) bool {
	select {
	case o := <-w.far:
		if o.n == by {
			w.far <- o
			return false
		}
		w.g.Go(func() error { return w.ask(o, s) })
		return true
	default:
		return false
	}
}

// ask has another look, and goes on with what that has seen when it is a worker's
// turn. Who does not answer is asked less.
func (w *walker) ask(o other, s Sight) error {
	seen, err := o.look(w.ctx, s)
	if err == nil {
		err = seen.check(&s)
	}
	if err != nil {
		seen = Seen{Unread: true}
	} else {
		w.far <- o
	}
	select {
	case w.near <- struct{}{}: // who has one does not wait for another
		defer func() { <-w.near }()
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
	left := seen.Left
	switch {
	case seen.Unread && len(s.Names) == 0:
		return w.dir(string(s.Dir))
	case seen.Unread:
		left = s.Names
	}
	names := make([]string, len(left))
	for i, name := range left {
		names[i] = string(name)
	}
	if err := w.names(string(s.Dir), names, false); err != nil {
		return err
	}
	items := make([]found, len(seen.Items))
	for i, it := range seen.Items {
		items[i] = found{Item: it}
	}
	return w.add(items, o.n)
}
