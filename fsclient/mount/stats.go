package mount

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// op is a kind of request.
type op uint8

const (
	opLookup op = iota
	opForget
	opGetattr
	opSetattr
	opReadlink
	opSymlink
	opMknod
	opMkdir
	opUnlink
	opRmdir
	opRename
	opLink
	opCreate
	opOpen
	opRead
	opWrite
	opFlush
	opFsync
	opRelease
	opOpendir
	opReaddir
	opReaddirplus
	opReleasedir
	opFsyncdir
	opStatfs
	opGetxattr
	opListxattr
	opSetxattr
	opRemovexattr
	opFallocate
	opLseek
	opGetlk
	opSetlk
	opSetlkw
	opCount
)

var opNames = [opCount]string{
	"lookup", "forget", "getattr", "setattr", "readlink", "symlink", "mknod", "mkdir", "unlink", "rmdir", "rename",
	"link", "create", "open", "read", "write", "flush", "fsync", "release", "opendir", "readdir", "readdirplus",
	"releasedir", "fsyncdir", "statfs", "getxattr", "listxattr", "setxattr", "removexattr", "fallocate", "lseek",
	"getlk", "setlk", "setlkw",
}

func (o op) String() string { return opNames[o] }

type opCounters struct {
	calls  [opCount]atomic.Int64
	took   [opCount]latency
	errors atomic.Int64
	panics atomic.Int64

	passthrough atomic.Int64
	prefetched  atomic.Int64
	datasets    sync.Map // of *readTimes, by metadata.DatasetID
}

// readTimes records how long the reads of a dataset took.
type readTimes struct {
	latency
	first atomic.Int64 // nanoseconds since 1970: when the first read was answered
}

// answered records how long a request took.
func (c *opCounters) answered(o op, ino metadata.Ino, took time.Duration) {
	c.took[o].add(took)
	if o != opRead || !ino.Sealed() {
		return
	}
	v, ok := c.datasets.Load(ino.Dataset())
	if !ok {
		v, _ = c.datasets.LoadOrStore(ino.Dataset(), new(readTimes))
	}
	t := v.(*readTimes)
	t.add(took)
	if t.first.Load() == 0 {
		t.first.CompareAndSwap(0, time.Now().UnixNano())
	}
}

// Stats counts the requests of the kernel.
type Stats struct {
	Calls map[string]int64 `json:"calls"` // by operation; operations never requested are absent
	// Latency is by operation, for the operations that are timed.
	Latency map[string]Latency `json:"latency"`
	Errors  int64              `json:"errors"` // answers with an error, without lookups of missing names
	Panics  int64              `json:"panics"`
	// Passthrough counts the opens with passthrough.
	Passthrough int64 `json:"passthrough"`
	// Prefetched counts the files that were put into the page cache before a read.
	Prefetched int64 `json:"prefetched"`
	Pipes      int   `json:"pipes"` // in use now
	// Datasets is how long reads took, by dataset.
	Datasets map[metadata.DatasetID]ReadTimes `json:"datasets,omitempty"`
}

// ReadTimes is the distribution of the times that reads of a dataset took.
type ReadTimes struct {
	Latency
	First metadata.Time `json:"first"` // when the first read was answered
}

func (c *opCounters) stats() Stats {
	s := Stats{Calls: make(map[string]int64), Latency: make(map[string]Latency), Errors: c.errors.Load(), Panics: c.panics.Load(), Passthrough: c.passthrough.Load(), Prefetched: c.prefetched.Load()}
	for o := range opCount {
		if n := c.calls[o].Load(); n > 0 {
			s.Calls[o.String()] = n
		}
		if l := c.took[o].read(); l.Count > 0 {
			s.Latency[o.String()] = l
		}
	}
	c.datasets.Range(func(id, v any) bool {
		if s.Datasets == nil {
			s.Datasets = make(map[metadata.DatasetID]ReadTimes)
		}
		t := v.(*readTimes)
		s.Datasets[id.(metadata.DatasetID)] = ReadTimes{t.read(), metadata.Time(t.first.Load())}
		return true
	})
	return s
}
