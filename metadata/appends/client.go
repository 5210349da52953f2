package appends

import (
	"cmp"
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// Client is what one node knows of its appends to one open file. The caller's
// lock guards it, and serialises appends: between Reserve and Written, or
// Failed, there is no other Reserve.
type Client struct {
	seq         uint64               // of the last reservation
	busy        bool                 // between Reserve and Written or Failed
	reservation metadata.Reservation // the reservation, if its Len is not 0
	unused      uint64               // first of the last reservations at which nothing was written; 0 is none
	written     []metadata.Extent    // appended here and not yet below the size that everybody sees
	unsettled   bool                 // the home does not know that the last append is complete
	reports     uint64               // how often a home has asked for a report
	seen        int64                // end of the appends that this node may read
}

// Reserve asks for a place for n bytes. end is how far the node's other writes
// reach.
func (c *Client) Reserve(ino metadata.Ino, seq uint64, n, end int64) metadata.Append {
	c.seq, c.busy = seq, true
	c.reservation = metadata.Reservation{Seq: seq, Extent: metadata.Extent{Off: -1, Len: n}}
	return metadata.Append{Ino: ino, Seq: seq, Len: n, End: end, Unused: c.unused}
}

// Placed takes the home's answer to Reserve. reports is Reports of when the request
// was sent. again says that a home has started since, which may not know the place:
// ask again, with the same request.
func (c *Client) Placed(p metadata.Place, reports uint64) (again bool) {
	if reports != c.reports {
		return true
	}
	c.heard(p)
	c.reservation.Off = p.Off
	return false
}

// Failed ends a Reserve that got no place. The home may have reserved one, but
// nothing is written there.
func (c *Client) Failed() {
	c.skip()
	c.busy, c.unsettled, c.reservation = false, true, metadata.Reservation{}
}

// skip notes that nothing was written for the last reservation.
func (c *Client) skip() {
	c.unused = cmp.Or(c.unused, c.seq)
}

// Written ends a reservation of which n bytes were written. unused says that
// nothing was, and that no late request will. size is the size that this node
// knows: what lies behind a hole is not shown to its readers.
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

// Settlement tells the home which appends are complete, and asks it to answer
// when everybody sees them.
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

// Settled takes the home's answer to a Settlement, and reports whether it was
// the last word: the node has appended nothing since, and no home has started.
func (c *Client) Settled(q metadata.Append, p metadata.Place, reports uint64) (last bool) {
	if c.seq+1 != q.Seq || c.busy || reports != c.reports {
		return false
	}
	c.heard(p)
	return true
}

// Covered reports whether everybody sees what q has waited for, or will never:
// the file was truncated below that.
func Covered(q metadata.Append, p metadata.Place) bool {
	return p.Attr.Size >= q.Wait || p.Tail < q.Wait
}

// heard takes the answer of a home that knows of all appends but the one that is
// about to begin.
func (c *Client) heard(p metadata.Place) {
	c.unsettled, c.unused, c.seen = false, 0, 0
	c.written = slices.DeleteFunc(c.written, func(e metadata.Extent) bool {
		return e.End() <= p.Attr.Size || e.End() > p.Tail // everybody sees it, or it was cut off
	})
}

// Truncated forgets the appends of before a truncation.
func (c *Client) Truncated() { c.unsettled, c.unused, c.seen, c.written = false, 0, 0, nil }

// Reports counts the reports so far.
func (c *Client) Reports() uint64 { return c.reports }

// Report is what a home that has started wants to know.
func (c *Client) Report() (outstanding metadata.Reservation, written []metadata.Extent) {
	c.reports++
	outstanding = c.reservation
	outstanding.Seq = c.seq // also of one that is over: no late copy of its request gets a place
	return outstanding, slices.Clone(c.written)
}

// Busy reports whether an append is under way.
func (c *Client) Busy() bool { return c.busy }

// Unsettled reports whether the home does not know that the last append is
// complete.
func (c *Client) Unsettled() bool { return c.unsettled }

// Invisible reports whether some appends of this node may not be seen by
// everybody yet.
func (c *Client) Invisible() bool { return c.unsettled || len(c.written) > 0 }

// Seen is the end of the appends that this node may read; 0 if the home's word
// is newer.
func (c *Client) Seen() int64 { return c.seen }
