// Package accessplan computes which file of a dataset each rank of a training job reads, and
// when: the order that the seeded samplers of PyTorch and package bivouac.torch give, or an explicit list. All nodes
// compute the same order from the same Plan and manifest, without messages.
//
//	Plan       the user's description: kind of sampler, seed, ranks, the root of the files
//	Numbering  the files, or ranges of files, as the training program numbers them: number <-> inode, bytes
//	Epoch      the order of one epoch: (rank, position) <-> number
//
// It has no state and does no I/O. It must not know how files are read or prefetched.
package accessplan
