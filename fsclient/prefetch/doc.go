// Package prefetch fetches the files of a dataset that the ranks of this node read next, because their order is known
// (Dryden et al., "Clairvoyant Prefetching for Distributed Machine Learning I/O", SC'21). It has two halves:
//
//	Tracker  pure: the plan, sampled reads, exact positions and the clock → what to fetch next,
//	         for which rank, how far ahead. Its test drives thousands of random loaders.
//	Engine   fetches the wants in batches by owner, keeps them in memory, and stores most
//	         in the kernel's page cache.
//
// The daemon does not see a read of a page that the kernel has cached. So one position in probeEvery is kept in the
// daemon's memory instead of the page cache: its read shows where the rank is, and still costs no network. Every other
// such probe is a beacon: its pages are dropped, so that its read is seen even if the kernel still has the file from an
// earlier epoch. If the kernel has nearly all files (resident), only beacons are fetched. For files that the kernel
// reads by itself, such as local ones through a kernel view, opens are seen in jobs of one node (Engine.Opened). They
// show where ranks are, and are neither hits nor misses.
//
// The tracker follows the plan, searches for the position of the reads in the plan, or has found the plan to be stale:
//
//	waiting    too few reads yet, or they stopped fitting: nothing is fetched, and the epochs that
//	           may come next are tried against the last reads
//	following  reads are where they are expected
//	stale      many reads fit no epoch: searching continues, seldom
//
// Reads fit an epoch if most follow another read of the same rank by a few positions. This holds for any number of
// workers, since each reads its batches in order. By chance, few reads fit.
//
// Overflow files are read from the source. Neighbours in an archive that ranks here read soon are wanted together,
// ahead of their turn, and are read by one request (Config.Neighbours). They may take three quarters of the budget.
// While no nearer file is wanted, such files are fetched early, so that the source is read steadily although a rank
// that moves to other chunks reads from many runs at once. While this node still stages its part, they are put off.
//
// Nodes do not share overflow files read from the source. In virtual time, with four nodes, another node had requested
// the same run within a second in 4 to 10 % of the requests of a chunk-wise shuffle of 2,048 files and in none of
// 8,192; of a full shuffle with a plan in 59 % of 2,048, 21 % of 8,192 and 7 % of 32,768 files, whose epoch is 79
// seconds. They want other files of the run.
//
// A plan may number ranges of files. A unit is the whole pages of a number. Units of more than 512 KiB are fetched one
// by one. Large ones (Engine.whole), such as shards, are streams: their pieces are fetched ahead of the reader, at a
// distance that grows while the reader is late, and are kept in memory, so that every read is seen. Near a stream's
// end, the first piece of the next one in the plan is fetched (line). Streams have half of the budget. Streams on this
// node's drive are left to its read-ahead.
//
// Prefetched files are bounded in bytes (Budget), and by rank in positions: the distance, from the rank's pace and the
// time that a fetch takes. A file is dropped when the rank has passed it. Windows bound the bytes in flight from other
// nodes and from the source, so that demand reads do not queue behind them. A read that meets its file in flight waits
// for it.
package prefetch
