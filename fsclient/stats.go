package fsclient

import (
	"sync/atomic"

	"github.com/bivouacfs/bivouac/metadata"
)

// counters are what a client has done.
type counters struct {
	metaLocal, metaRemote   atomic.Int64
	metaSealed              atomic.Int64
	readLocal, readRemote   atomic.Int64
	writeLocal, writeRemote atomic.Int64
	published               atomic.Int64
	gathered, parcels       atomic.Int64
	writing                 atomic.Int64 // writes under way
}

// Stats is what a client has done since its start. Bytes are of file data.
type Stats struct {
	MetaLocal   int64 `json:"meta_local"`  // metadata calls to this node's store
	MetaRemote  int64 `json:"meta_remote"` // to other nodes
	MetaSealed  int64 `json:"meta_sealed"` // answered by a manifest
	ReadLocal   int64 `json:"read_local"`  // bytes
	ReadRemote  int64 `json:"read_remote"`
	WriteLocal  int64 `json:"write_local"`
	WriteRemote int64 `json:"write_remote"`
	Published   int64 `json:"published"` // sizes told to an inode's home
	Gathered    int64 `json:"gathered"`  // bytes that were acknowledged before they were sent
	Parcels     int64 `json:"parcels"`   // in which they were sent
	Gathering   int64 `json:"gathering"` // buffers with what has not arrived
	Open        int64 `json:"open"`      // live files that are open now
}

// Stats is what the client has done since its start.
func (c *Client) Stats() Stats {
	s := &c.stats
	return Stats{
		MetaLocal: s.metaLocal.Load(), MetaRemote: s.metaRemote.Load(), MetaSealed: s.metaSealed.Load(),
		ReadLocal: s.readLocal.Load(), ReadRemote: s.readRemote.Load(),
		WriteLocal: s.writeLocal.Load(), WriteRemote: s.writeRemote.Load(),
		Published: s.published.Load(),
		Gathered:  s.gathered.Load(), Parcels: s.parcels.Load(), Gathering: int64(len(c.tails.slots)),
		Open: int64(c.files.len()),
	}
}

func (c *Client) countMeta(id metadata.NodeID) {
	if id == c.cfg.Self {
		c.stats.metaLocal.Add(1)
		return
	}
	c.stats.metaRemote.Add(1)
}

func (c *Client) countRead(id metadata.NodeID, n int) {
	if id == c.cfg.Self {
		c.stats.readLocal.Add(int64(n))
		return
	}
	c.stats.readRemote.Add(int64(n))
}

func (c *Client) countWrite(id metadata.NodeID, n int) {
	if id == c.cfg.Self {
		c.stats.writeLocal.Add(int64(n))
		return
	}
	c.stats.writeRemote.Add(int64(n))
}
