package fsclient

import (
	"context"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/fsclient/writeback"
	"github.com/bivouacfs/bivouac/metadata"
)

// WriteMemory bounds the written bytes that a client buffers.
const WriteMemory = writeback.Memory

// Stats counts the operations of a client since its start. Bytes are of file data.
type Stats struct {
	MetaLocal   int64 `json:"meta_local"`  // metadata calls to this node's store
	MetaRemote  int64 `json:"meta_remote"` // to other nodes
	MetaSealed  int64 `json:"meta_sealed"` // answered by a manifest
	ReadLocal   int64 `json:"read_local"`  // bytes
	ReadRemote  int64 `json:"read_remote"`
	WriteLocal  int64 `json:"write_local"`
	WriteRemote int64 `json:"write_remote"`
	Published   int64 `json:"published"` // sizes reported to an inode's home
	Buffered    int64 `json:"buffered"`  // bytes acknowledged before they were sent
	Batches     int64 `json:"batches"`   // calls in which they were sent
	Buffers     int64 `json:"buffers"`   // write-back buffers in use
	Open        int64 `json:"open"`      // live files that are open now
}

// Stats returns the client's counters since its start.
func (c *Client) Stats() Stats {
	data, pool := c.data.Stats(), c.pool.Stats()
	local, remote := c.nodes.Calls()
	return Stats{
		MetaLocal: local, MetaRemote: remote, MetaSealed: c.sealed.calls.Load(),
		ReadLocal: data.ReadLocal, ReadRemote: data.ReadRemote,
		WriteLocal: data.WriteLocal, WriteRemote: data.WriteRemote,
		Published: c.published.Load(),
		Buffered:  pool.Buffered, Batches: pool.Batches, Buffers: pool.Buffers,
		Open: int64(c.files.len()),
	}
}

// DatasetReads returns the reads of each dataset for which a reader waited.
func (c *Client) DatasetReads() map[metadata.DatasetID]stripe.DatasetReads { return c.data.Datasets() }

// Sources returns the measurements of the places that datasets were read from.
func (c *Client) Sources() []sources.Status { return c.places.Status() }

// Idle returns how long this node has not read datasets from other nodes.
func (c *Client) Idle() time.Duration { return c.places.Idle() }

// Where returns the nodes that have all of the dataset file a: its owner, or the owner's stand-in, and the holders of
// replicas. It returns none if the file is on several nodes, or if it is read through from the source. BeginRead
// chooses among them.
func (c *Client) Where(a *metadata.Attr) []metadata.NodeID {
	if !a.Ino.Sealed() || a.Layout.Kind != metadata.Local {
		return nil
	}
	return c.nodes.Where(nil, a, a.Layout.Node, 0)
}

// BeginRead chooses the fastest of several places for a read of n bytes. The caller must call End.
func (c *Client) BeginRead(n int64, among []metadata.NodeID) sources.Read {
	return c.places.Begin(n, among)
}

// ReadMany reads small dataset files from one node that has them all, in one call and without waiting for any: see
// datapath.ManyReader.
func (c *Client) ReadMany(ctx context.Context, id metadata.NodeID, rs []datapath.RangeRead, buf []byte) error {
	return c.data.ReadMany(ctx, id, rs, buf)
}

// Neighbours returns the wanted overflow files that ReadMany of this node reads together with the file ino: see
// datapath.NeighbourFinder.
func (c *Client) Neighbours(ino metadata.Ino, wanted func(metadata.Ino) bool) []metadata.Ino {
	return c.data.Neighbours(ino, wanted)
}
