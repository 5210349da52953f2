// Package training records how the job's training reads its datasets, epoch by epoch: where the
// samples came from, and how long reads waited.
//
//	Take     every second: adds the counts of this node's mount to the current epoch
//	Post     a rank's own measurements (bivouac.torch.watch)
//	Epochs   the epochs of a dataset, summed over the nodes of the job
//
// The mount does not see reads of the kernel alone: from the page cache, by passthrough, or
// through a kernel view. Which epoch is read comes from the dataset's access plan; without one
// all reads are in one row (Unknown). An epoch that begins between two calls of Take gets up to a
// second of the previous one's reads.
//
// In a job of one node with a kernel view, every file is local, so the daemon sees no read and no epoch; ranks that report
// positions or measurements (bivouac.torch) are seen. Two ways to see reads there were rejected. FUSE for one file in 64 slows
// these reads down. inotify (IN_OPEN) on the view's directories costs a read about a microsecond, but a watch must be set
// inside the view: a daemon that resolves a path there waits for its own FUSE mount, and hangs if it is killed at that moment, so
// the helper that makes the view (root) would have to set the watches and hand them over. fanotify needs root at all times.
//
// The log is in a file, so that it outlives the daemon, but not the node. Log.mu is a leaf; it is
// not held across a remote call. The package does not know how files are read.
package training
