package daemon

import (
	"context"

	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/metadata"
)

// Client is this node's client.
type Client interface {
	home.Client
	// Quiesce waits until the homes know what was written on the node, also
	// what the kernel has yet to write and to close for processes that have ended.
	// It returns how many files are still open for writing.
	Quiesce(ctx context.Context) (open int, err error)
}

// SetClient sets the client of this node.
func (d *Daemon) SetClient(c Client) {
	d.client.Store(&c)
	d.home.SetClient(c)
}

// SetRevoke sets how this node's client and mount forget what they have cached.
func (d *Daemon) SetRevoke(f home.RevokeFunc) { d.home.SetRevoke(f) }

// Run is that of this node's client: it starts and ends with the daemon.
func (d *Daemon) Run() metadata.Run { return d.run }

func (d *Daemon) openHome() (err error) {
	d.home, err = home.Open(home.Config{
		Node: d, Data: d.data, Dir: d.dir("meta"), UID: d.job.UID, GID: d.job.GID, Run: d.run,
		Home:    func(id metadata.NodeID) metadata.TxPeer { return d.cfg.Meta(d.peers.To(id)) },
		Shards:  func(id metadata.NodeID) metadata.Shards { return d.cfg.Shards(d.peers.To(id)) },
		SplitAt: d.cfg.SplitAt, SweepDelay: d.cfg.Timing.Sweep,
	})
	return err
}
