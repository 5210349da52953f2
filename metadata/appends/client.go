package appends

import (
	"cmp"
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// Client is a node's state of its appends to one open file. The caller's lock guards it, and serializes appends:
// between Reserve and Written, or Failed, there is no other Reserve.
type Client struct {
	seq         uint64               // of the last reservation
	busy        bool                 // between Reserve and Written or Failed
	reservation metadata.Reservation // the reservation, if its Len is not 0
	unused      uint64               // first of the last reservations that were not written; 0 is none
	written     []metadata.Extent    // appended here, and not yet below the size that all nodes see
	unsettled   bool                 // the home does not know that the last append is complete
	reports     uint64               // number of reports that homes have requested
	seen        int64                // end of the appends that this node may read
}

// Reserve requests a place for n bytes. end is the file size that the node's other writes imply.
func (c *Client) Reserve(ino metadata.Ino, seq uint64, n, end int64) metadata.Append {
	c.seq, c.busy = seq, true
	c.reservation = metadata.Reservation{Seq: seq, Extent: metadata.Extent{Off: -1, Len: n}}
	return metadata.Append{Ino: ino, Seq: seq, Len: n, End: end, Unused: c.unused}
}

// Placed handles the home's answer to Reserve. reports is the value of Reports when the request was sent. again means
// that a home has started since, which may not know the place: the caller repeats the same request.
func (c *Client) Placed(p metadata.Place, reports uint64) (again bool) {
	if reports != c.reports {
		return true
	}
	c.heard(p)
	c.reservation.Off = p.Off
	return false
}

// Failed ends a Reserve that got no place. The home may have reserved one, but no bytes were written to it.
func (c *Client) Failed() {
	c.skip()
	c.busy, c.unsettled, c.reservation = false, true, metadata.Reservation{}
}

// skip records that the last reservation was not written.
func (c *Client) skip() {
	c.unused = cmp.Or(c.unused, c.seq)
}

// Written ends a reservation of which n bytes were written. unused means that none were, and that no late request will
// write any. size is the size that this node knows: bytes after a hole are not shown to its readers.
func (c *Client) Written(n int, unused bool, size int64) {
	if unused {
		c.skip()
	} else {
		c.unused = 0
		c.written = append(c.written, c.reservation.Extent)
	}
	if c.reservation.Off <= size {
		c.seen = max(c.seen, c.reservation.Off+int64(n))
	}
	c.busy, c.unsettled, c.reservation = false, true, metadata.Reservation{}
}

// Settlement returns a request that lists the completed appends, and that the home answers when all nodes see them.
func (c *Client) Settlement(ino metadata.Ino, end int64) metadata.Append {
	q := metadata.Append{Ino: ino, Seq: c.seq + 1, End: end, Unused: c.unused}
	for _, e := range c.written {
		q.Wait = max(q.Wait, e.End())
	}
	if c.busy {
		q.Seq = c.seq
	}
	return q
}

// Settled handles the home's answer to a Settlement. It returns true if the answer is final: this node has appended
// nothing since, and no home has started.
func (c *Client) Settled(q metadata.Append, p metadata.Place, reports uint64) (last bool) {
	if c.seq+1 != q.Seq || c.busy || reports != c.reports {
		return false
	}
	c.heard(p)
	return true
}

// Covered reports whether all nodes see the bytes that q waited for, or never will, because the file was truncated
// below them.
func Covered(q metadata.Append, p metadata.Place) bool {
	return p.Attr.Size >= q.Wait || p.Tail < q.Wait
}

// heard handles the answer of a home that knows of all appends except the next one.
func (c *Client) heard(p metadata.Place) {
	c.unsettled, c.unused, c.seen = false, 0, 0
	c.written = slices.DeleteFunc(c.written, func(e metadata.Extent) bool {
		return e.End() <= p.Attr.Size || e.End() > p.Tail // all nodes see it, or it was cut off
	})
}

// Truncated drops the state of appends from before a truncation.
func (c *Client) Truncated() { c.unsettled, c.unused, c.seen, c.written = false, 0, 0, nil }

// Reports returns the number of reports so far.
func (c *Client) Reports() uint64 { return c.reports }

// Report returns the state that a restarted home asks for.
func (c *Client) Report() (outstanding metadata.Reservation, written []metadata.Extent) {
	c.reports++
	outstanding = c.reservation
	outstanding.Seq = c.seq // also if it has ended: no late copy of its request gets a place
	return outstanding, slices.Clone(c.written)
}

// Busy reports whether an append is in progress.
func (c *Client) Busy() bool { return c.busy }

// Unsettled reports whether the home does not know that the last append is complete.
func (c *Client) Unsettled() bool { return c.unsettled }

// Invisible reports whether other nodes may not see some appends of this node yet.
func (c *Client) Invisible() bool { return c.unsettled || len(c.written) > 0 }

// Seen returns the end of the appends that this node may read; 0 if the home's answer is newer.
func (c *Client) Seen() int64 { return c.seen }
