package fill

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// item is a part that a transfer or an unpacking pass reads.
type item struct {
	part
	index   int // among the parts of its run
	heads   []byte
	holes   *holes // of a sparse member
	sum     archive.Hasher
	want    *stagein.Checker // if only the CRC-32C is known
	read    bool             // all bytes were read
	stored  bool             // all bytes were stored
	changed bool             // the source now has other bytes

	direct bool            // sent unbatched, as its bytes arrive
	queued int64           // bytes in data
	data   [][]byte        // bytes read so far
	held   []*source.Piece // the piece that holds each element of data
}

// hash adds bytes to the checksums.
func (x *item) hash(b []byte) {
	x.sum.Write(b)
	if x.want != nil {
		_, _ = x.want.Write(b) // cannot fail
	}
}

// transfer reads neighbours in an archive together, for all their owners.
type transfer struct {
	f       *Fill
	items   []*item
	next    int // index of the first item that is not completely read
	puts    errgroup.Group
	batches *archive.Batcher

	mu  sync.Mutex
	bad map[*item]error // guarded by mu
}

func (c *transfer) run(n uint32) error {
	src, err := c.f.src.OpenArchive(n)
	if err != nil {
		return err
	}
	src.Src = background{File: src.Src, ctx: c.f.ctx, limiter: c.f.limiter}
	from, end := c.items[0].begin(), int64(0)
	for _, x := range c.items {
		end = max(end, x.end())
	}
	c.bad, c.batches = make(map[*item]error), archive.NewBatcher(c.send)
	c.puts.SetLimit(max(c.f.cfg.Workers/2, 1))
	switch {
	case c.items[0].zip != (manifest.Zip{}):
		err = c.unzip(src, from, end)
	default:
		err = c.read(src, from, end)
	}
	c.flush()
	_ = c.puts.Wait() // bad has the errors
	for _, x := range c.items {
		x.stored = err == nil && x.read && c.bad[x] == nil
		err = errors.Join(err, c.bad[x])
	}
	return src.Close(err)
}

// read reads the bytes [from, end) of an archive.
func (c *transfer) read(src *archive.Content, from, end int64) error {
	r := source.ReadRegion(c.f.ctx, src.Src, src.Name, from, end, c.f.bufs.In, archive.ReadAhead)
	defer r.Close()
	for {
		if !r.Ready() {
			c.flush()
		}
		p, err := r.Next()
		if err == io.EOF {
			return src.Unchanged()
		}
		if err != nil {
			return err
		}
		err = c.take(p)
		p.Release()
		if err != nil {
			return err
		}
	}
}

// take sends the bytes of p to their owners.
func (c *transfer) take(p *source.Piece) error {
	for i := c.next; i < len(c.items) && c.items[i].begin() < p.End(); i++ {
		x := c.items[i]
		if from, end := max(x.begin(), p.Off), min(x.at, p.End()); from < end {
			c.checkHead(x, p.B[from-p.Off:end-p.Off])
		}
		from, end := max(x.at, p.Off), min(x.end(), p.End())
		if from < end {
			c.put(x, p, from, p.B[from-p.Off:end-p.Off])
		}
		x.read = x.end() <= p.End()
		if x.read && i == c.next {
			c.next++
		}
	}
	return c.f.ctx.Err()
}

// checkHead compares the headers of an item with the index.
func (c *transfer) checkHead(x *item, b []byte) {
	x.heads = append(x.heads, b...)
	if int64(len(x.heads)) < x.head {
		return
	}
	if err := tar.CheckHead(x.heads, x.at, x.check); err != nil {
		c.fail(x, err) // its owner reports the fault
	}
}

func (c *transfer) fail(x *item, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bad[x] = err
}

// put sends b to its owner. b lies in p, at offset at of the archive.
func (c *transfer) put(x *item, p *source.Piece, at int64, b []byte) {
	if !x.direct {
		c.enqueue(x, p, b)
		return
	}
	x.sum.Write(b)
	c.putDirect(x, p, at, b)
}

// putDirect stores bytes of an item without batching.
func (c *transfer) putDirect(x *item, p *source.Piece, at int64, b []byte) {
	p.Hold()
	c.puts.Go(func() error {
		defer p.Release()
		var err error
		if off := x.off + at - x.at; x.node == c.f.cfg.Self {
			err = c.f.cfg.Put(c.f.ctx, x.Ino, b, off)
		} else {
			err = c.f.cfg.Peers.Put(c.f.ctx, x.node, x.Ino, b, off)
		}
		if err != nil {
			c.fail(x, err)
		}
		return nil // the others continue
	})
}

// enqueue batches b, the next bytes of x, which lie in p. A batch is sent once its items are complete.
func (c *transfer) enqueue(x *item, p *source.Piece, b []byte) {
	x.sum.Write(b)
	x.data, x.held = append(x.data, b), append(x.held, p.Hold())
	if x.queued += int64(len(b)); x.queued < x.n {
		return
	}
	c.batches.Add(x.node, archive.BatchedPut{
		PiecePut: datapath.PiecePut{Ino: x.Ino, Off: x.off, Data: x.data, Sum: x.sum.Sum128()},
		Held:     x.held,
		Done: func(err error) error {
			if err != nil {
				c.fail(x, err)
			}
			return nil // the others continue
		},
	})
	x.data, x.held = nil, nil
}

// flush sends all batches. It sends the bytes so far of an incomplete item unbatched, and so is its rest.
func (c *transfer) flush() {
	c.batches.Flush()
	for _, x := range c.items[c.next:] {
		c.flushPart(x)
	}
}

// flushPart sends the bytes so far of an incomplete item unbatched; the rest follows as it arrives.
func (c *transfer) flushPart(x *item) {
	if x.queued == 0 || x.queued == x.n || x.direct {
		return
	}
	x.direct = true
	at := x.at
	for i, b := range x.data {
		c.putDirect(x, x.held[i], at, b)
		at += int64(len(b))
	}
	archive.ReleaseAll(x.held)
	x.data, x.held = nil, nil
}

// send delivers a batch in the background.
func (c *transfer) send(l *archive.Batch) {
	c.puts.Go(func() error { return l.Deliver(c.f.ctx, c.f.putAll) })
}

// putAll stores pieces on a node.
func (f *Fill) putAll(ctx context.Context, to metadata.NodeID, ps []datapath.PiecePut) ([]error, error) {
	if to != f.cfg.Self {
		return f.cfg.Peers.PutAll(ctx, to, ps)
	}
	return stagein.PutEach(ctx, ps, f.cfg.Put), nil
}
