package scan

import (
	"context"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// innerSegments bounds the segments of a tar in a tar. Many such tars are scanned concurrently.
const innerSegments = 4

// section is a member of an archive as a file.
type section struct {
	source.File
	off int64
}

// ReadAt implements io.ReaderAt.
func (s section) ReadAt(p []byte, off int64) (int, error) { return s.File.ReadAt(p, s.off+off) }

// unnest replaces each member that is a tar by that tar's members, in a directory named after the member without .tar.
// A member named .tar that is not a tar stays a file.
func (a *archiveScan) unnest(ctx context.Context, cfg *Config) error {
	h, err := a.open(cfg)
	if err != nil {
		return err
	}
	all := newItemList(cfg.Scratch)
	g, ctx := errgroup.WithContext(ctx)
	next := make(chan *nesting, scansAtOnce) // bounds the concurrent scans
	g.Go(func() error {
		defer close(next)
		return a.items.each(func(it *source.Item) error {
			n := &nesting{it: *it, done: make(chan struct{})}
			select {
			case next <- n:
			case <-ctx.Done():
				return ctx.Err()
			}
			if !isNested(it) {
				close(n.done)
				return nil
			}
			g.Go(func() (err error) {
				defer close(n.done)
				n.inner, err = h.inner(ctx, &n.it)
				return err
			})
			return nil
		})
	})
	g.Go(func() error {
		for n := range next {
			<-n.done
			if err := n.list(all); err != nil {
				return err
			}
		}
		return nil
	})
	err = a.end(h, g.Wait())
	if err != nil {
		all.close()
		return err
	}
	if was, ok := a.items.(*itemList); ok && a.newIndex == nil {
		was.close()
	}
	a.items = all
	return nil
}

// nesting is a member and, if it is a tar, its members.
type nesting struct {
	it    source.Item
	inner []source.Item // nil: not a tar; set before done is closed
	done  chan struct{}
}

func (n *nesting) list(all *itemList) error {
	if n.inner == nil {
		return all.add(&n.it, 0)
	}
	return itemSlice(n.inner).each(func(it *source.Item) error { return all.add(it, 0) })
}

// isNested reports whether an item's name is that of a tar.
func isNested(it *source.Item) bool {
	dir := strings.TrimSuffix(it.Path, ".tar")
	return it.Hardlink == "" && it.Is(source.TypeRegular) && it.Size >= source.BlockSize && dir != it.Path && dir != "" && !strings.HasSuffix(dir, "/")
}

// inner returns the members of a member that is a tar, and their directory, or nil if the member is not a tar.
func (h *headerScanner) inner(ctx context.Context, it *source.Item) ([]source.Item, error) {
	dir := strings.TrimSuffix(it.Path, ".tar")
	in := &headerScanner{f: section{h.f, it.Off}, name: h.name + ": member " + it.Path, size: it.Size, room: h.room, sel: h.sel, under: dir, nested: true, exact: h.exact}
	defer func() { h.read.Add(in.read.Load()) }()
	var head page
	b, err := in.block(ctx, &head, new(tar.Parser))
	if err != nil || !tar.IsHeader(b) {
		return nil, err
	}
	all := []source.Item{{Path: dir, Mode: source.TypeDir | 0o755, Mtime: it.Mtime}}
	if h.sel.Excludes(dir) {
		return all, nil
	}
	found, _, err := in.scan(ctx, in.segments(worthHops, innerSegments))
	if err != nil {
		return nil, err
	}
	defer found.close()
	err = found.each(func(x *source.Item) error {
		if x.Path == "" { // the inner tar's root gives the directory its attributes
			x.Path, x.Off = dir, 0
			all[0] = *x
			return nil
		}
		x.Off += it.Off
		x.MoveUnder(dir)
		all = append(all, *x)
		return nil
	})
	return all, err
}
