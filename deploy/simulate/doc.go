// Package simulate predicts how long the epochs of a training job take under
// each way of reading its dataset: from the source, staged first, staged while
// training reads, prefetched by plan, with locality, replicas or chunk-wise
// shuffling. Its one idea is that a job's time follows from a few recurrences
// over its batches, so that hundreds of nodes can be tried in seconds.
//
// # The model
//
// Files have sizes and a place: an owner, or the source if they found no room.
// Each epoch has an order, which deals batches to ranks. A rank's DataLoader
// has W workers; batch s is loaded by worker s mod W, as soon as that worker has
// loaded batch s-W and training has taken batch s - W*prefetch. A worker reads
// one file after another. With a plan the files of a batch are fetched before,
// in large requests, as soon as training has taken the batch that lies the
// prefetch distance before, in the preceding epoch too.
//
// The source, each drive, and each direction of each node's link are queues:
// the first request is served first, at the given rate; the first batches of an
// epoch, which all workers ask for at once, are served side by side. A request also takes its
// latency, which only other readers can hide. Staging uses the bandwidth of
// the source that demand reads leave. With a plan it stages in the order of the plan.
//
// A step begins when all ranks have their batch (unless Async is set) and takes
// Step. Stall is the share of an epoch's time outside steps.
//
// # Left out
//
// Page caches that keep samples from one epoch to the next, so a dataset is
// taken to be larger than memory; processors, apart from Decode; sharing of the
// network beyond the nodes' links; failures. Chunk-wise runs are taken to be
// read without their gaps.
//
// The package does no I/O: rates that are measured come from its caller.
package simulate
