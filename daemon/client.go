package daemon

import (
	"context"
	"time"

	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/partner"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
)

// Client is this node's client, as the daemon uses it.
type Client interface {
	home.Client
	// Quiesce waits until the homes know all writes of the node, including data that the kernel has yet to write back
	// and files that it has yet to close for ended processes. It returns how many files are still open for writing.
	Quiesce(ctx context.Context) (open int, err error)
	// Idle returns how long the node has not read datasets from other nodes.
	Idle() time.Duration
}

// SetClient sets the client of this node.
func (d *Daemon) SetClient(c Client) {
	d.client.Store(&c)
	d.home.SetClient(c)
	d.datasets.Replicas.SetIdle(c.Idle)
}

// SetRevoke sets the function that drops cached answers of this node's client and mount.
func (d *Daemon) SetRevoke(f home.RevokeFunc) { d.home.SetRevoke(f) }

// Run returns the run of this node's client: it starts and ends with the daemon.
func (d *Daemon) Run() metadata.Run { return d.run }

func (d *Daemon) openHome() (err error) {
	open := func(n node.Node, cfg home.Config) (*home.Server, error) {
		cfg.Node, cfg.Data, cfg.UID, cfg.GID = n, homeData{d.data, d.copies}, d.job.UID, d.job.GID
		cfg.SplitAt, cfg.SweepDelay = d.cfg.SplitAt, d.cfg.Timing.Sweep
		cfg.Home = func(id metadata.NodeID) metadata.TxPeer { return d.cfg.Meta(n.To(id)) }
		cfg.Shards = func(id metadata.NodeID) metadata.Shards { return d.cfg.Shards(n.To(id)) }
		return home.Open(cfg)
	}
	d.home, err = open(d, home.Config{
		Dir: d.dir("meta"), Run: d.run,
		Serves: func() error { return d.partner.Serves() }, Copies: func(ctx context.Context) error { return d.partner.Want(ctx) },
		Room: func() bool { return d.partner.HasRoom() }, InStep: func() bool { return d.partner.InStep() },
	})
	if err != nil {
		return err
	}
	d.partner, err = partner.Open(partner.Config{
		Node: d, Run: d.run, Records: d.home, Lease: &d.copies.Lease, Dir: d.dir("partner"), Room: d.data.Room, Patience: 2 * d.cfg.Timing.Down,
		Peer: func(id metadata.NodeID) rpc.Caller { return d.peers.To(id) }, Here: func() node.Handlers { return d.calls },
		Open: func(n node.Node, dir string, s *partner.Sender) (*home.Server, error) {
			return open(n, home.Config{Dir: dir, Run: max(metadata.Run(now()), d.run), StandIn: true, Serves: s.Serves, Copies: s.Want, Room: s.HasRoom, InStep: s.InStep})
		},
	})
	return err
}
