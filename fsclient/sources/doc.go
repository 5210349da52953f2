// Package sources measures the places from which datasets are read, and chooses between places that have the same
// bytes. A place is a node, as owner or as holder of a replica, or the source. Its one idea is NoPFS's performance
// model, measured instead of configured: each read updates moving averages of the place's latency and time per byte.
//
// The cost of a read is its expected time multiplied by the number of reads outstanding at the place, including this
// one. Among places of nearly equal cost two are drawn, and the one with fewer reads outstanding wins (power of two
// choices), so that many readers do not all choose the same place.
//
//	fast    gets its share of the reads
//	slow    takes slowFactor times as long as the best one: gets probes only
//	failed  its last read failed: gets probes only
//	idle    has not been read from yet
//
// This node's own drive is used while half of its time is at most the time of the best other place.
//
// A probe is an ordinary read. The interval between probes doubles, and starts again when a probe is answered much
// faster than expected. An outlier counts as twice the average. A place that has not answered counts as slow as its
// silence is long.
//
// The package does not know which place has which bytes, and makes no reads. Its caller provides the clock and random
// numbers.
package sources
