// Package slowpfs is a stand-in for a cluster's parallel filesystem: a FUSE passthrough of a directory, mounted once
// per client node, whose mounts share one server's limits. Its one idea is that claims about a source are counted and
// limited here, by the kernel's requests to a mount, and not by the measured program.
//
// # Limits
//
// A request that a client would send to a server costs
//
//	latency     a fixed time; requests wait it out side by side
//	operations  one from a bucket that all mounts share, if IOPS is set
//	bytes       what is read or written, from a bucket that all share, if Bandwidth is set
//
// and is answered when the last of the three has ended. The work on the directory below runs in parallel, so it adds
// no time as long as it is faster than the limits. A bucket saves at most 20 ms of unused rate (burst); so a transfer
// of n bytes takes at least n/Bandwidth less 20 ms, for all mounts together, and two concurrent transfers share the
// rate.
//
// An interrupted request is answered at once; its full cost is still booked.
//
// With Errors, one of this many requests is not done, and fails with EIO, like a drive with bad blocks.
//
// # What is a request
//
// Each FUSE request is one operation, and is counted by kind:
//
//	lookup   LOOKUP            read     READ, up to 1 MiB
//	getattr  GETATTR, STATX    readdir  READDIR, some hundred names each
//	open     OPEN, OPENDIR     write    WRITE, up to 1 MiB
//	readlink READLINK          change   CREATE, MKDIR, UNLINK, RENAME, SETATTR, ...
//	other    STATFS, FSYNC, LSEEK, xattrs, ...
//
// A client's local operations cost nothing and are not counted: FORGET, RELEASE, ACCESS. FLUSH, for which a close
// would wait, is requested once and never again. Names and attributes are cached for one second (Kept), as if under a
// lock. There is no READDIRPLUS, so each name whose attributes are needed costs a LOOKUP, like a call on Lustre or
// NFSv3.
//
// The page cache of a file is dropped when it is opened again, and nothing is passed through to the kernel, so a byte
// that is read again after a reopen is read, limited and counted again, as with a dataset that is larger than memory.
// Nodes with separate caches need a mount each, as client nodes have.
//
// # Counters
//
// Stats counts operations and bytes by kind, per mount and in total. The bytes of a READ are those returned. The
// kernel's unused read-ahead is counted, because a server would have sent it.
//
// A Server answers HTTP on a Unix socket: GET /stats returns Stats as JSON; POST /limits sets the Limits. Client uses
// this. The program in cmd is a Server in a separate process, so that its processor time can be separated.
//
// It does not imitate aspects without a limit: locks, stripes, write-back in a client's cache.
package slowpfs
