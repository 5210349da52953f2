// Package shard splits large directories: it splits their entries over the
// nodes, and takes them back when they are empty. Its one idea is that a single
// batch at the directory's home decides; until then the shards on the other
// nodes are drafts, from then on they are the directory, and a shard that
// does not know which asks.
//
// It knows no sockets: the store, the other nodes and the map are parameters.
//
// # Splitting
//
// A directory that has got many entries is split over the nodes that are Up
// in this epoch. H is its home, S each of the others.
//
//	1  H → S  make an empty shard, not in force
//	2  H → S  fill it, while the directory is in use; H notes which names change
//	3  H → S  fill in what has changed, until little is left
//	          wait until no entry is leased any more: none was since 1
//	4  H      shut: changes of entries are answered Resharding; lookups and listings go on;
//	          wait for the transactions that have a promise about an entry
//	5  H → S  fill in the rest
//	6  H      commit: one batch marks the directory sharded and removes the entries of others
//	7  H → S  open: the shard is in force
//
// Whoever asks H for a name that is not its own is told the epoch, Redirect,
// and goes on at the node where it is. If S does not know of 7 yet, it answers
// Unsettled and asks H. If H or an S fails before 6, nothing has happened: H
// orders the drafts dropped, and one that does not hear of it learns from its
// question that it is of no use. If S fails after 6 its names are unknown until
// it is back (EIO for those who ask), and the others go on.
//
// # Merging
//
// A sharded directory that shall be removed, or replaced by a rename, is merged
// before: each shard that is empty freezes, so that it stays so; when all
// are frozen, one batch at H makes the directory an empty one that is all here,
// and the shards are dropped. The removal then is an ordinary one. A shard
// that is not empty, or not to be reached, ends the merge, and the others thaw.
// Each freeze has a number: an answer to an older question thaws no later
// freeze.
//
// # Attributes
//
// The inode of a sharded directory is at H alone. What is done to its entries
// elsewhere counts in its link count and its times when the shard reports,
// Config.Delay later. A change of its mode, owner, group or layout reaches the
// sections before it is acknowledged, except those on nodes that cannot be
// reached: these hear of it by their next report.
package shard
