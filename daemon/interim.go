package daemon

import (
	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/opens"
)

// interimHome is the home while the daemon still handles its open files.
type interimHome struct {
	*home.Server
	files *opens.Files
}

// interimSweep passes on what the sweep must know.
type interimSweep struct{ heard func(metadata.Holder) }

// interimClient is the client of this node, once there is one.
type interimClient struct{ d *Daemon }

// Recall is metadata.Recaller.
func (c interimClient) Recall(q metadata.Recall) metadata.Recalled { return c.d.onRecall(q) }

// Wake is metadata.Woken.
func (c interimClient) Wake(waiters []uint64) {
	if x := c.d.client.Load(); x != nil {
		(*x).Wake(waiters)
	}
}

func (d *Daemon) openHome() error {
	s, err := home.Open(home.Config{
		Node: d, Data: d.data, Dir: d.dir("meta"), UID: d.job.UID, GID: d.job.GID, Run: d.run,
		Home:   func(id metadata.NodeID) metadata.TxPeer { return d.cfg.Meta(d.peers.To(id)) },
		Shards: func(id metadata.NodeID) metadata.Shards { return d.cfg.Sections(d.peers.To(id)) },
		WideAt: d.cfg.WideAt, SweepDelay: d.cfg.Timing.Sweep,
		Interim: home.Interim{Places: d.places, Remove: d.removeObjects},
	})
	if err != nil {
		return err
	}
	d.meta, d.sweep = interimHome{s, s.Files()}, interimSweep{s.HeardRun}
	d.leased = d.meta
	s.SetClient(interimClient{d})
	return d.oldOrphans()
}

// SetRevoke sets how this node's client and mount forget what they have cached.
func (d *Daemon) SetRevoke(f home.RevokeFunc) { d.meta.SetRevoke(f) }

// Home is this node as the home of its part of the live realm.
func (d *Daemon) Home() *home.Server { return d.meta.Server }

func attrReply(a metadata.Attr, err error) (node.Appender, error) {
	if err != nil && a.Ino == 0 {
		return nil, err
	}
	return &wire.AttrResp{Attr: a}, err
}
