// Package training records how the job's training reads its datasets, epoch by epoch: where the samples came from, and
// how long reads waited.
//
//	Take     every second: adds the counts of this node's mount to the current epoch
//	Post     a rank's own measurements (bivouac.torch.watch)
//	Epochs   the epochs of a dataset, summed over the nodes of the job
//
// The mount does not see reads that the kernel answers alone: from the page cache, by passthrough, or through a kernel
// view. In a view, it sees their opens (deploy/mounts, Opens). The dataset's access plan says which epoch is being
// read; without a plan all reads are in one row (Unknown). An epoch that begins between two calls of Take gets up to a
// second of the previous epoch's reads.
//
// The log is in a file, so that it outlives the daemon, but not the node. Log.mu is a leaf; it is not held across a
// remote call. The package does not know how files are read.
package training
