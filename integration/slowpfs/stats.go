package slowpfs

import "sync/atomic"

// Kind is a kind of request.
type Kind string

// The kinds of request.
const (
	Lookup   Kind = "lookup"
	Getattr  Kind = "getattr"
	Open     Kind = "open"
	Readlink Kind = "readlink"
	Read     Kind = "read"
	Readdir  Kind = "readdir"
	Write    Kind = "write"
	Change   Kind = "change"
	Other    Kind = "other"
)

// kinds lists all kinds.
var kinds = []Kind{Lookup, Getattr, Open, Readlink, Read, Readdir, Write, Change, Other}

// Count is a number of operations and the bytes they moved.
type Count struct {
	Ops   int64 `json:"ops"`
	Bytes int64 `json:"bytes"`
}

// Counts maps kinds to counts; a kind without requests is omitted.
type Counts map[Kind]Count

// Total returns the sum over all kinds.
func (c Counts) Total() Count {
	var t Count
	for _, n := range c {
		t.Ops, t.Bytes = t.Ops+n.Ops, t.Bytes+n.Bytes
	}
	return t
}

// Since returns the difference to an earlier snapshot.
func (c Counts) Since(before Counts) Counts {
	d := make(Counts)
	for k, n := range c {
		b := before[k]
		if n != b {
			d[k] = Count{n.Ops - b.Ops, n.Bytes - b.Bytes}
		}
	}
	return d
}

// Stats holds the counts of a Server.
type Stats struct {
	Limits Limits            `json:"limits"`
	Sum    Counts            `json:"sum"`    // of all mounts
	Mounts map[string]Counts `json:"mounts"` // by mountpoint
}

// counters holds running Counts.
type counters map[Kind]*counter

type counter struct{ ops, bytes atomic.Int64 }

func newCounters() counters {
	c := make(counters, len(kinds))
	for _, k := range kinds {
		c[k] = new(counter)
	}
	return c
}

func (c counters) add(k Kind, bytes int64) {
	c[k].ops.Add(1)
	c[k].bytes.Add(bytes)
}

func (c counters) counts() Counts {
	n := make(Counts)
	for k, v := range c {
		if ops := v.ops.Load(); ops > 0 {
			n[k] = Count{ops, v.bytes.Load()}
		}
	}
	return n
}
