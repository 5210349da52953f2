package stagein

import (
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// load is the parcels that go to one node together: a message for each of them
// would cost both ends more than its bytes do.
type load struct {
	node    metadata.NodeID
	parcels []*parcel
	bytes   int64
}

// pack puts b, which lies in p and is what x has next, on the load for its node.
// The parcel is sent when it is whole, with others.
func (c *carrier) pack(x *parcel, p *source.Piece, b []byte) {
	x.sum.write(b)
	x.data, x.held = append(x.data, b), append(x.held, p.Hold())
	if x.packed += int64(len(b)); x.packed < x.n {
		return
	}
	l := c.loads[x.node]
	if l != nil && (l.bytes+x.n > wire.MaxData || len(l.parcels) == wire.MaxParcels) {
		c.send(l)
		l = nil
	}
	if l == nil {
		l = &load{node: x.node}
		c.loads[x.node] = l
	}
	l.parcels, l.bytes = append(l.parcels, x), l.bytes+x.n
}

// flush sends all that is packed, so that nobody waits for the source with buffers
// that others wait for. What there is of a parcel that is not whole goes alone, and
// so does its rest.
func (c *carrier) flush() {
	for _, l := range c.loads {
		c.send(l)
	}
	for _, x := range c.parcels[c.next:] {
		if x.packed == 0 {
			break
		}
		if x.packed < x.n && !x.alone {
			c.unpack(x)
		}
	}
}

// unpack has a parcel go alone.
func (c *carrier) unpack(x *parcel) {
	x.alone = true
	at := x.at
	for i, b := range x.data {
		c.putAlone(x, x.held[i], at, b)
		at += int64(len(b))
	}
	x.release()
}

// send stores a load, or has it stored.
func (c *carrier) send(l *load) {
	delete(c.loads, l.node)
	store := func() error {
		if l.node == c.f.cfg.Self {
			c.keep(l)
		} else {
			c.carry(l)
		}
		for _, x := range l.parcels {
			x.release()
		}
		return nil // the others go on
	}
	if c.own {
		_ = store() // its bytes are in this processor's cache
		return
	}
	c.puts.Go(store)
}

// keep stores a load on this node.
func (c *carrier) keep(l *load) {
	for _, x := range l.parcels {
		off := x.off
		for _, b := range x.data {
			if err := c.f.cfg.Put(c.f.ctx, x.ino, b, off); err != nil {
				c.fail(x, err)
				break
			}
			off += int64(len(b))
		}
	}
}

// carry brings a load to another node.
func (c *carrier) carry(l *load) {
	ps := make([]datapath.Parcel, len(l.parcels))
	for i, x := range l.parcels {
		ps[i] = datapath.Parcel{Ino: x.ino, Off: x.off, Data: x.data, Sum: x.sum.sum128()}
	}
	errs, err := c.f.cfg.Others.PutAll(c.f.ctx, l.node, ps)
	for i, x := range l.parcels {
		if err != nil {
			c.fail(x, err)
		} else if errs[i] != nil {
			c.fail(x, errs[i])
		}
	}
}

// release gives up the buffers that a parcel lies in.
func (x *parcel) release() {
	release(x.held)
	x.data, x.held = nil, nil
}
