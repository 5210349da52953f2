package stagein

import (
	"context"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// innerStretches is in how many stretches a tar in a tar is hopped through at the
// most; many such tars are, at a time.
const innerStretches = 4

// section is a member of an archive as a file.
type section struct {
	source.File
	off int64
}

// ReadAt implements io.ReaderAt.
func (s section) ReadAt(p []byte, off int64) (int, error) { return s.File.ReadAt(p, s.off+off) }

// unnest puts in the place of each member that is a tar what is in that, in a
// directory with the member's name but its ending. What is named .tar and does not
// begin as one stays a file.
func (a *archiveScan) unnest(ctx context.Context, fs source.FS) error {
	h, err := a.open(fs)
	if err != nil {
		return err
	}
	inner := make([][]source.Item, len(a.items))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(scansAtOnce)
	for i := range a.items {
		if it := &a.items[i]; isNested(it) {
			g.Go(func() (err error) {
				inner[i], err = h.inner(gctx, it)
				return err
			})
		}
	}
	err = g.Wait()
	var all []source.Item
	for i, it := range a.items {
		if inner[i] == nil {
			all = append(all, it)
		}
		all = append(all, inner[i]...)
	}
	a.items = all
	return a.end(h, err)
}

// isNested reports whether an item is named as a tar.
func isNested(it *source.Item) bool {
	dir := strings.TrimSuffix(it.Path, ".tar")
	return it.Hardlink == "" && it.Is(source.TypeRegular) && it.Size >= source.BlockSize && dir != it.Path && dir != "" && !strings.HasSuffix(dir, "/")
}

// inner is what is in a member that is a tar, with its directory; nil if it is none.
func (h *hopper) inner(ctx context.Context, it *source.Item) ([]source.Item, error) {
	in := &hopper{f: section{h.f, it.Off}, name: h.name + ": member " + it.Path, size: it.Size}
	defer func() { h.read.Add(in.read.Load()) }()
	var head page
	b, err := in.block(ctx, &head, 0)
	if err != nil || !source.IsHeader(b) {
		return nil, err
	}
	items, _, err := in.scan(ctx, in.stretches(worthHops, innerStretches))
	if err != nil {
		return nil, err
	}
	dir := strings.TrimSuffix(it.Path, ".tar")
	all := []source.Item{{Path: dir, Mode: source.TypeDir | 0o755, Mtime: it.Mtime}}
	for _, x := range items {
		if x.Path == "" { // says what the directory is
			x.Path, x.Off = dir, 0
			all[0] = x
			continue
		}
		x.Off += it.Off
		under(dir, &x)
		all = append(all, x)
	}
	return all, nil
}
