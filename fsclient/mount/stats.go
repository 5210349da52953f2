package mount

import "sync/atomic"

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
}

// Stats counts the requests of the kernel.
type Stats struct {
	Calls map[string]int64 `json:"calls"` // by operation; without those that never came
	// Latency is by operation, of those that are timed.
	Latency map[string]Latency `json:"latency"`
	Errors  int64              `json:"errors"` // answers with an error, without lookups of missing names
	Panics  int64              `json:"panics"`
	// Passthrough counts the opens with passthrough.
	Passthrough int64 `json:"passthrough"`
	// Prefetched counts the files that were put into the page cache before a read.
	Prefetched int64 `json:"prefetched"`
	Pipes      int   `json:"pipes"` // in use now
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
	return s
}
