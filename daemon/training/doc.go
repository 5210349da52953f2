// Package training keeps how the job's training reads its datasets, epoch by epoch: from where
// the samples came, and how long it waited for them.
//
//	Take     every second: what this node's mount has counted goes to the epoch that is read now
//	Post     what a rank of this node has measured itself (bivouac.torch.watch)
//	Epochs   the epochs of a dataset, summed over the nodes of the job
//
// The mount does not see reads of the kernel alone: from the page cache, by passthrough, or
// through a kernel view. Which epoch is read comes from the dataset's access plan; without one
// all reads are in one row (Unknown). An epoch that begins between two calls of Take gets up to a
// second of the one before.
//
// The log is in a file, so that it outlives the daemon, but not the node. Log.mu is a leaf; it is
// not held across a remote call. The package does not know how files are read.
package training
