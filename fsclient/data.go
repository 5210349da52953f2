package fsclient

import (
	"context"
	"fmt"
	"math"
	"slices"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// fanOut is how many nodes one request talks to at once.
const fanOut = 16

// ReadFile fills p from offset off of the file that a describes. Fewer bytes
// than len(p) mean the end of the file, at a.Size; holes are zeros.
func (c *Client) ReadFile(ctx context.Context, a metadata.Attr, p []byte, off int64) (int, error) {
	return c.ReadFilePipe(ctx, a, nil, p, off)
}

// ReadFilePipe is ReadFile, but that the bytes may be in the pipe to, all of
// them, rather than in p: to.N says. It may be nil.
func (c *Client) ReadFilePipe(ctx context.Context, a metadata.Attr, to *datapath.Pipe, p []byte, off int64) (int, error) {
	order, err := c.order(ctx, a.Ino, a.Layout)
	if err != nil {
		return 0, err
	}
	return c.read(ctx, a, order, to, p, off)
}

// read has the bytes in p or, all of them, in the pipe to, if it is not nil.
func (c *Client) read(ctx context.Context, a metadata.Attr, order []metadata.NodeID, to *datapath.Pipe, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("inode %v: read at %d: %w", a.Ino, off, syscall.EINVAL)
	}
	if off >= a.Size {
		return 0, nil
	}
	p = p[:min(int64(len(p)), a.Size-off)]
	if a.Ino.Sealed() {
		if err := c.readFileSealed(ctx, a, order, to, p, off); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	spans := datapath.Spans(a.Layout.Chunk(), order, off, int64(len(p)))
	to = whole(to, spans)
	err := each(ctx, spans, func(ctx context.Context, s datapath.Span) error {
		return c.readSpan(ctx, a.Ino, s, to, p[s.Pos-off:][:s.Len])
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// whole is the pipe for what lies in one piece; nil for other reads.
func whole(to *datapath.Pipe, spans []datapath.Span) *datapath.Pipe {
	if len(spans) == 1 {
		return to
	}
	return nil
}

// readAt is d's ReadAt, or ReadPipe if there is a pipe.
func readAt(ctx context.Context, d datapath.Reader, ino metadata.Ino, to *datapath.Pipe, p []byte, off int64) (int, error) {
	if dp, ok := d.(datapath.Piper); ok && to != nil {
		return dp.ReadPipe(ctx, ino, to, p, off)
	}
	return d.ReadAt(ctx, ino, p, off)
}

func (c *Client) readSpan(ctx context.Context, ino metadata.Ino, s datapath.Span, to *datapath.Pipe, p []byte) error {
	d, err := c.dataOf(s.Node)
	var n int
	if err == nil {
		n, err = readAt(ctx, d, ino, to, p, s.Off)
	}
	if err == nil && to != nil && n < len(p) { // what follows is zeros
		err = to.Take(p[:n])
	}
	if err != nil {
		return fmt.Errorf("inode %v: bytes at %d: %w", ino, s.Pos, err)
	}
	clear(p[n:])
	c.countRead(s.Node, n)
	return nil
}

// WriteFile writes p at offset off of a live file, and tells the inode's home
// its size. It is for those who do not keep the file open; the others have
// File.WriteAt.
func (c *Client) WriteFile(ctx context.Context, a metadata.Attr, p []byte, off int64) error {
	if a.Ino.Sealed() {
		return readOnly(a.Ino)
	}
	order, err := c.order(ctx, a.Ino, a.Layout)
	if err != nil {
		return err
	}
	if _, _, err := c.write(ctx, a, order, p, off); err != nil {
		return err
	}
	_, err = c.Setattr(ctx, a.Ino, metadata.Change{Set: metadata.GrowSize | metadata.MtimeNow, Size: off + int64(len(p))})
	return err
}

// write returns how many bytes from the start of p are written, all of them
// unless it fails, and the nodes that it wrote to.
func (c *Client) write(ctx context.Context, a metadata.Attr, order []metadata.NodeID, p []byte, off int64) (int, []metadata.NodeID, error) {
	if off < 0 {
		return 0, nil, fmt.Errorf("inode %v: write at %d: %w", a.Ino, off, syscall.EINVAL)
	}
	if off > math.MaxInt64-int64(len(p)) {
		return 0, nil, fmt.Errorf("inode %v: write at %d: %w", a.Ino, off, syscall.EFBIG)
	}
	pieces := make([]piece, 0, 2)
	var nodes []metadata.NodeID
	for _, s := range datapath.Spans(a.Layout.Chunk(), order, off, int64(len(p))) {
		pieces = append(pieces, piece{Span: s, done: new(bool)})
		if !slices.Contains(nodes, s.Node) {
			nodes = append(nodes, s.Node)
		}
	}
	c.stats.writing.Add(1)
	defer c.stats.writing.Add(-1)
	// One that fails does not stop those before it: what they write counts.
	err := each(ctx, pieces, func(_ context.Context, w piece) error {
		err := c.writeSpan(ctx, a.Ino, w.Span, p[w.Pos-off:][:w.Len])
		*w.done = err == nil
		return err
	})
	n := 0
	for _, w := range pieces {
		if !*w.done {
			break
		}
		n += int(w.Len)
	}
	return n, nodes, err
}

// piece is a span that is being written.
type piece struct {
	datapath.Span
	done *bool
}

func (c *Client) writeSpan(ctx context.Context, ino metadata.Ino, s datapath.Span, p []byte) error {
	d, err := c.dataOf(s.Node)
	if err == nil {
		err = d.WriteAt(ctx, ino, p, s.Off)
	}
	if err != nil {
		return fmt.Errorf("inode %v: bytes at %d: %w", ino, s.Pos, err)
	}
	c.countWrite(s.Node, len(p))
	return nil
}

// each calls fn with every item, several at once, and returns when all calls
// have: the first error, if any.
func each[T any](ctx context.Context, items []T, fn func(context.Context, T) error) error {
	switch len(items) {
	case 0:
		return nil
	case 1:
		return fn(ctx, items[0])
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for _, it := range items[1:] {
		g.Go(func() error { return fn(ctx, it) })
	}
	err := fn(ctx, items[0])
	if gerr := g.Wait(); gerr != nil {
		return gerr // if both failed, this one may have cancelled the other
	}
	return err
}

// Truncate sets the size of a live file. Truncate in the package comment has
// the steps.
func (c *Client) Truncate(ctx context.Context, ino metadata.Ino, size int64) (metadata.Attr, error) {
	return c.Setattr(ctx, ino, metadata.Change{Set: metadata.SetSize, Size: size})
}

// cut removes what lies behind size of the file a, which has at most a.Size
// bytes, on every node that can have some of it.
func (c *Client) cut(ctx context.Context, a metadata.Attr, size int64) error {
	if size >= a.Size {
		return nil
	}
	order, err := c.order(ctx, a.Ino, a.Layout)
	if err != nil {
		return err
	}
	type place struct {
		node metadata.NodeID
		size int64
	}
	var places []place
	for k, id := range order {
		had := datapath.ObjectSize(a.Layout.Chunk(), len(order), k, a.Size)
		keeps := datapath.ObjectSize(a.Layout.Chunk(), len(order), k, size)
		if keeps < had {
			places = append(places, place{id, keeps})
		}
	}
	return each(ctx, places, func(ctx context.Context, p place) error {
		d, err := c.dataOf(p.node)
		switch {
		case err != nil:
		case p.size == 0:
			err = d.Remove(ctx, a.Ino) // an object without bytes would outlive its file
		default:
			err = d.Truncate(ctx, a.Ino, p.size)
		}
		if err != nil {
			return fmt.Errorf("inode %v: cut to %d: %w", a.Ino, size, err)
		}
		return nil
	})
}

// Hosts is the names of the nodes that hold the data of the file a, in the
// order of its stripe; "source" for one that lies on none.
func (c *Client) Hosts(ctx context.Context, a metadata.Attr) ([]string, error) {
	if a.Layout.Kind == metadata.Spilled {
		return []string{"source"}, nil
	}
	order, err := c.order(ctx, a.Ino, a.Layout)
	if err != nil {
		return nil, err
	}
	m := c.cfg.View().Map
	hosts := make([]string, len(order))
	for i, id := range order {
		n, _ := m.Node(id)
		hosts[i] = n.Host
	}
	return hosts, nil
}
