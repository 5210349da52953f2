package jobtest

import (
	"bytes"
	"context"
	"sync"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// swarm connects the fills of one dataset on all nodes of a job; each is a peer of the others.
type swarm struct {
	j    *Job
	mu   sync.Mutex
	here map[metadata.NodeID]*fill.Fill    // guarded by mu
	come map[metadata.NodeID]chan struct{} // closed when the node's fill has joined

	Offers func(to metadata.NodeID, c fill.Offer) error      // called before an offer
	landed func(to metadata.NodeID, l fill.Completion) error // called before a completion
	Sent   func(n int)                                       // called before n bytes are sent to another node
	Loads  func(ps []datapath.PiecePut)                      // called before a batch is sent to another node
	Alone  func()                                            // called before a piece is sent unbatched
	Stores func(p *datapath.PiecePut) error                  // called before each piece of a batch is stored
	Lost   func() error                                      // its error fails a batch in transit
}

func NewSwarm(j *Job) *swarm {
	c := &swarm{j: j, here: map[metadata.NodeID]*fill.Fill{}, come: map[metadata.NodeID]chan struct{}{}}
	for i := range j.Nodes {
		c.come[metadata.NodeID(i)] = make(chan struct{})
	}
	return c
}

// again returns a swarm like c without fills.
func (c *swarm) again() *swarm {
	n := NewSwarm(c.j)
	n.Offers, n.landed, n.Sent, n.Loads = c.Offers, c.landed, c.Sent, c.Loads
	n.Alone, n.Stores, n.Lost = c.Alone, c.Stores, c.Lost
	return n
}

func (c *swarm) join(node metadata.NodeID, f *fill.Fill) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.here[node] == nil {
		close(c.come[node])
	}
	c.here[node] = f
}

func (c *swarm) fill(ctx context.Context, node metadata.NodeID) (*fill.Fill, error) {
	select {
	case <-c.come[node]:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.here[node], nil
}

func (c *swarm) Offer(ctx context.Context, to metadata.NodeID, q fill.Offer) ([]bool, error) {
	if c.Offers != nil {
		if err := c.Offers(to, q); err != nil {
			return nil, err
		}
	}
	f, err := c.fill(ctx, to)
	if err != nil {
		return nil, err
	}
	return f.Accept(q), nil
}

func (c *swarm) Put(ctx context.Context, to metadata.NodeID, ino metadata.Ino, p []byte, off int64) error {
	if c.Alone != nil {
		c.Alone()
	}
	return c.put(ctx, to, ino, p, off)
}

func (c *swarm) put(ctx context.Context, to metadata.NodeID, ino metadata.Ino, p []byte, off int64) error {
	if c.Sent != nil {
		c.Sent(len(p))
	}
	return c.j.Target.Put(ctx, to, ino, p, off)
}

func (c *swarm) PutAll(ctx context.Context, to metadata.NodeID, ps []datapath.PiecePut) ([]error, error) {
	if c.Loads != nil {
		c.Loads(ps)
	}
	if c.Lost != nil {
		if err := c.Lost(); err != nil {
			return nil, err
		}
	}
	errs := make([]error, len(ps))
	for i := range ps {
		p := &ps[i]
		if err := c.badPiece(p); err != nil {
			errs[i] = err
			continue
		}
		errs[i] = c.put(ctx, to, p.Ino, bytes.Join(p.Data, nil), p.Off)
	}
	return errs, nil
}

// badPiece returns a node's error for a piece that differs from the one sent.
func (c *swarm) badPiece(p *datapath.PiecePut) error {
	if c.Stores != nil {
		if err := c.Stores(p); err != nil {
			return err
		}
	}
	h := wire.PieceHeader{Ino: p.Ino, Off: p.Off, Len: uint32(p.Len()), Sum: p.Sum}
	return h.Check(bytes.Join(p.Data, nil))
}

func (c *swarm) Complete(ctx context.Context, to metadata.NodeID, l fill.Completion) error {
	if c.landed != nil {
		if err := c.landed(to, l); err != nil {
			return err
		}
	}
	f, err := c.fill(ctx, to)
	if err != nil {
		return err
	}
	return f.Complete(l)
}
