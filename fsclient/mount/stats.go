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
	opCount
)

var opNames = [opCount]string{
	"lookup", "forget", "getattr", "setattr", "readlink", "symlink", "mknod", "mkdir", "unlink", "rmdir", "rename",
	"link", "create", "open", "read", "write", "flush", "fsync", "release", "opendir", "readdir", "readdirplus",
	"releasedir", "fsyncdir", "statfs", "getxattr", "listxattr", "setxattr", "removexattr", "fallocate",
}

func (o op) String() string { return opNames[o] }

type opCounters struct {
	calls  [opCount]atomic.Int64
	errors atomic.Int64
	panics atomic.Int64
}

// Stats counts the requests of the kernel.
type Stats struct {
	Calls  map[string]int64 `json:"calls"`  // by operation; those that never came are left out
	Errors int64            `json:"errors"` // answered with an error, ENOENT of a lookup left out
	Panics int64            `json:"panics"`
}

func (c *opCounters) stats() Stats {
	s := Stats{Calls: make(map[string]int64), Errors: c.errors.Load(), Panics: c.panics.Load()}
	for o := range opCount {
		if n := c.calls[o].Load(); n > 0 {
			s.Calls[o.String()] = n
		}
	}
	return s
}
