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

// Several nodes list a tree together: one walks, and sends names to the others (Remote) while all its own workers are
// busy. The walking node stats every name that a remote does not answer, so that it alone decides which errors the
// source has and which names are hard links (device numbers differ between nodes). A remote that sees another
// modification time of a directory does not list it: its cache is stale, or a filesystem is not mounted there.
// Therefore a directory is listed by another node than the one that found it.

const (
	// remoteBatch is how many names are sent in one request.
	remoteBatch = 64
	// requestsPerRemote is how many requests a remote has in flight.
	requestsPerRemote = 4
	// serveWorkers is how many names of one request a remote stats concurrently.
	serveWorkers = 8
	// maxServed is the size limit of a directory that a remote lists, in names.
	maxServed = 1024
)

// Request asks a remote to stat names in a directory, or to list the directory if there are no names.
type Request struct {
	Root  source.Name   `json:"root"`
	Dir   source.Name   `json:"dir,omitempty"` // relative to Root
	Names []source.Name `json:"names,omitempty"`
	// Mtime is the modification time of a directory to be listed.
	Mtime metadata.Time `json:"mtime,omitempty"`
}

func requestFor(root, dir string, names []string) Request {
	s := Request{Root: source.Name(root), Dir: source.Name(dir), Names: make([]source.Name, len(names))}
	for i, name := range names {
		s.Names[i] = source.Name(name)
	}
	return s
}

// Reply holds the entries that a remote found, and the names that it leaves to the walking node.
type Reply struct {
	Items []source.Item `json:"items,omitempty"`
	Left  []source.Name `json:"left,omitempty"`
	// Unread reports that the directory was not listed: it is too large, differs on this node, or could not be
	// read.
	Unread bool `json:"unread,omitempty"`
}

// Remote sends a request to another node and returns its reply.
type Remote func(ctx context.Context, s Request) (Reply, error)

// Serve answers a request of another node.
func (s Request) Serve(ctx context.Context, fs source.FS) (Reply, error) {
	names := make([]string, len(s.Names))
	for i, name := range s.Names {
		names[i] = string(name)
	}
	may := true
	if len(names) == 0 {
		names, may = s.list(fs)
	}
	if !may || len(names) > maxServed {
		return Reply{Unread: true}, nil
	}
	all := make([]entry, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(serveWorkers)
	for i, name := range names {
		g.Go(func() error {
			all[i], _ = look(fs, string(s.Root), below(string(s.Dir), name)) // the walking node reports the error
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return Reply{}, err
	}
	var seen Reply
	for i := range all {
		if all[i].Mode == 0 || all[i].multiple {
			seen.Left = append(seen.Left, source.Name(names[i]))
		} else {
			seen.Items = append(seen.Items, all[i].Item)
		}
	}
	return seen, nil
}

// list returns the names in the directory, if this node sees the same state of it as the walking node.
func (s *Request) list(fs source.FS) (names []string, ok bool) {
	dir := join(string(s.Root), string(s.Dir))
	info, err := fs.Lstat(dir)
	if err != nil || info.Mtime != s.Mtime {
		return nil, false
	}
	names, err = fs.ReadDir(dir)
	return names, err == nil
}

// check rejects a reply that does not answer the request.
func (n *Reply) check(s *Request) error {
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

// remote is one of the other nodes.
type remote struct {
	send Remote
	n    int // index in Config.Remotes, or thisNode
}

// thisNode stands for the walking node.
const thisNode = -1

// tryRemote sends a request to a free remote other than by.
func (w *walker) tryRemote(s Request, by int) bool {
	select {
	case o := <-w.remotes:
		if o.n == by {
			w.remotes <- o
			return false
		}
		w.g.Go(func() error { return w.ask(o, s) })
		return true
	default:
		return false
	}
}

// ask sends a request, and continues with the reply once a local worker is free. A remote that fails gets fewer
// requests afterwards.
func (w *walker) ask(o remote, s Request) error {
	seen, err := o.send(w.ctx, s)
	if err == nil {
		err = seen.check(&s)
	}
	if err != nil {
		seen = Reply{Unread: true}
	} else {
		w.remotes <- o
	}
	select {
	case w.local <- struct{}{}: // no caller holds a worker while it waits for another
		defer func() { <-w.local }()
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
	items := make([]entry, len(seen.Items))
	for i, it := range seen.Items {
		items[i] = entry{Item: it}
	}
	return w.add(items, o.n)
}
