package stagein

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// parcel is a part on its way.
type parcel struct {
	part
	place int // among the parts of its run
	heads []byte
	holes *holes // of a sparse one
	sum   archive.Hasher
	read  bool // all of it
	there bool // all of it is put

	alone  bool            // it goes by itself, as it comes
	packed int64           // bytes in data
	data   [][]byte        // what was read of it
	held   []*source.Piece // where each of data lies
}

// carrier brings neighbours, in one go.
type carrier struct {
	f       *Fill
	parcels []*parcel
	next    int // the first that was not all read
	puts    errgroup.Group
	batches *archive.Batcher

	mu  sync.Mutex
	bad map[*parcel]error // guarded by mu
}

func (c *carrier) bring(n uint32) error {
	src, err := c.f.src.OpenArchive(n)
	if err != nil {
		return err
	}
	src.Src = ahead{File: source.Background(src.Src), ctx: c.f.ctx, g: c.f.gate}
	from, end := c.parcels[0].begin(), int64(0)
	for _, x := range c.parcels {
		end = max(end, x.end())
	}
	c.bad, c.batches = make(map[*parcel]error), archive.NewBatcher(c.send)
	c.puts.SetLimit(max(c.f.cfg.Workers/2, 1))
	switch {
	case c.parcels[0].zip != (manifest.Zip{}):
		err = c.unzip(src, from, end)
	default:
		err = c.read(src, from, end)
	}
	c.flush()
	_ = c.puts.Wait() // bad says what failed
	for _, x := range c.parcels {
		x.there = err == nil && x.read && c.bad[x] == nil
		err = errors.Join(err, c.bad[x])
	}
	return src.Close(err)
}

// read reads the bytes [from, end) of an archive.
func (c *carrier) read(src *archive.Content, from, end int64) error {
	r := source.ReadRegionNear(c.f.ctx, src.Src, src.Name, from, end, c.f.bufs.In, archive.ReadAhead)
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

// take hands what was read to those who are to have it.
func (c *carrier) take(p *source.Piece) error {
	for i := c.next; i < len(c.parcels) && c.parcels[i].begin() < p.End(); i++ {
		x := c.parcels[i]
		if from, end := max(x.begin(), p.Off), min(x.at, p.End()); from < end {
			c.look(x, p.B[from-p.Off:end-p.Off])
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

// look sees whether the headers of a parcel are what an index says.
func (c *carrier) look(x *parcel, b []byte) {
	x.heads = append(x.heads, b...)
	if int64(len(x.heads)) < x.head {
		return
	}
	if err := tar.CheckHead(x.heads, x.at, x.check); err != nil {
		c.fail(x, err) // who is to have it says what is wrong
	}
}

func (c *carrier) fail(x *parcel, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bad[x] = err
}

// put hands b, which lies in p and at in the archive, to who is to have it.
func (c *carrier) put(x *parcel, p *source.Piece, at int64, b []byte) {
	if !x.alone {
		c.pack(x, p, b)
		return
	}
	x.sum.Write(b)
	c.putAlone(x, p, at, b)
}

// putAlone is put for a part of a parcel.
func (c *carrier) putAlone(x *parcel, p *source.Piece, at int64, b []byte) {
	p.Hold()
	c.puts.Go(func() error {
		defer p.Release()
		var err error
		if off := x.off + at - x.at; x.node == c.f.cfg.Self {
			err = c.f.cfg.Put(c.f.ctx, x.ino, b, off)
		} else {
			err = c.f.cfg.Others.Put(c.f.ctx, x.node, x.ino, b, off)
		}
		if err != nil {
			c.fail(x, err)
		}
		return nil // the others go on
	})
}

// pack puts b, which lies in p and is what x has next, with what there is of x. The
// parcel goes when it is whole, with others.
func (c *carrier) pack(x *parcel, p *source.Piece, b []byte) {
	x.sum.Write(b)
	x.data, x.held = append(x.data, b), append(x.held, p.Hold())
	if x.packed += int64(len(b)); x.packed < x.n {
		return
	}
	c.batches.Add(x.node, archive.BatchedPut{
		PiecePut: datapath.PiecePut{Ino: x.ino, Off: x.off, Data: x.data, Sum: x.sum.Sum128()},
		Held:     x.held,
		Done: func(err error) error {
			if err != nil {
				c.fail(x, err)
			}
			return nil // the others go on
		},
	})
	x.data, x.held = nil, nil
}

// flush sends all that is packed. What there is of a parcel that is not whole goes
// alone, and so does its rest.
func (c *carrier) flush() {
	c.batches.Flush()
	for _, x := range c.parcels[c.next:] {
		c.rest(x)
	}
}

// rest has what there is of a parcel that is not whole go alone, and its rest as it
// comes.
func (c *carrier) rest(x *parcel) {
	if x.packed == 0 || x.packed == x.n || x.alone {
		return
	}
	x.alone = true
	at := x.at
	for i, b := range x.data {
		c.putAlone(x, x.held[i], at, b)
		at += int64(len(b))
	}
	archive.ReleaseAll(x.held)
	x.data, x.held = nil, nil
}

// send has a load brought.
func (c *carrier) send(l *archive.Batch) {
	c.puts.Go(func() error { return l.Deliver(c.f.ctx, c.f.putAll) })
}

// putAll stores parcels on a node.
func (f *Fill) putAll(ctx context.Context, to metadata.NodeID, ps []datapath.PiecePut) ([]error, error) {
	if to != f.cfg.Self {
		return f.cfg.Others.PutAll(ctx, to, ps)
	}
	return PutEach(ctx, ps, f.cfg.Put), nil
}
