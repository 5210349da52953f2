// Package simulate predicts how long the epochs of a training job take with each way of reading its dataset: from the
// source, staged first, staged while training reads, prefetched by plan, with locality, replicas or chunk-wise
// shuffling. Its one idea is that a job's time follows from a few recurrences over its batches, so that hundreds of
// nodes can be simulated in seconds.
//
// # The model
//
// Files have a size and a place: an owner, or the source if they found no room. Each epoch has an order, which deals
// batches to ranks. A rank's DataLoader has W workers; worker s mod W loads batch s, as soon as it has loaded batch s-W
// and training has taken batch s - W*prefetch. A worker reads one file after another. With a plan, the files of a batch
// are prefetched in large requests, as soon as training has taken the batch that is the prefetch distance before it,
// even in the preceding epoch.
//
// The source, each drive, and each direction of each node's link are FIFO queues with a given rate; the first batches
// of an epoch, which all workers request at once, are served concurrently. A request also takes its latency, which only
// concurrent readers can hide. Staging uses the bandwidth of the source that demand reads leave. With a plan it stages
// in the order of the plan.
//
// A step begins when all ranks have their batch (unless Async is set) and takes
// Step. Stall is the share of an epoch's time outside steps.
//
// # Left out
//
// Page caches that keep samples from one epoch to the next, so the dataset is assumed to be larger than memory;
// processors, apart from Decode; sharing of the network beyond the nodes' links; failures. Chunk-wise runs are assumed
// to be read without their gaps.
//
// The package does no I/O: its caller supplies measured rates.
package simulate
