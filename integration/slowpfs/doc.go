// Package slowpfs is a stand-in for the parallel filesystem of a cluster: a
// FUSE passthrough of a directory, mounted once for each client node, whose
// mounts share one server's limits. Its one idea is that what a figure claims
// about a source is counted and limited here, by what the kernel asks of a mount,
// and not by the program that is measured.
//
// # Limits
//
// A request that a client would send to a server costs
//
//	latency     a fixed time; requests wait it out side by side
//	operations  one from a bucket that all mounts share, if IOPS is set
//	bytes       what is read or written, from a bucket that all share, if Bandwidth is set
//
// and is answered when the last of the three is over. The work on the directory
// below is done meanwhile, so what it takes is not added as long as it is
// faster than the limits. A bucket saves up what is not used for at most 20 ms
// (burst); so a transfer of n bytes takes at least n/Bandwidth less 20 ms, for
// all mounts together, and two that run at once share the rate.
//
// A request that is interrupted is answered at once; what it costs is booked
// all the same.
//
// With Errors, one of so many requests is not done, and fails with EIO: a drive with bad blocks.
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
// What a client does by itself costs nothing and is not counted: FORGET,
// RELEASE, ACCESS. FLUSH, for which a close would wait, is asked for once and never
// again. Names and attributes are kept for one second (Kept), as if
// under a lock. There is no READDIRPLUS, so each name whose attributes are
// wanted costs a LOOKUP, as it costs a call on Lustre or NFSv3.
//
// The page cache of a mount is dropped when a file is opened again, and
// nothing is passed through to the kernel, so a byte that a client reads again
// from a file it has opened again is read, limited and counted again: as with a
// dataset that is larger than memory. Nodes that are to have caches of their own
// need a mount each, as client nodes have.
//
// # Counters
//
// Stats counts operations and bytes by kind, of each mount and of all. Bytes of
// a READ are those that were returned. Read-ahead of the kernel that nobody
// used is counted, because a server would have sent it.
//
// A Server answers HTTP on a Unix socket: GET /stats is Stats as JSON; POST
// /limits sets the Limits. Client speaks it. The program in cmd is a Server as a
// process of its own, so that processor time can be told apart.
//
// It does not imitate what no limit stands for: locks, stripes, writes that lie
// in a client's cache.
package slowpfs
