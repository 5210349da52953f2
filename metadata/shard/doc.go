// Package shard splits the entries of large directories over the nodes, and merges them again when they are empty. A
// single batch at the directory's home decides: before it the shards on other nodes are drafts, after it they are part
// of the directory, and a shard that does not know asks the home.
//
// It must not know sockets: the store, the other nodes and the map are parameters.
//
// # Splitting
//
// H is the home of the directory, S each other node that is Up in this epoch.
//
//	1  H → S  create an empty, inactive shard
//	2  H → S  copy the entries, while the directory is in use; H records changed names
//	3  H → S  recall the leases on entries that were granted before 1;
//	          copy the changes, until few are left
//	4  H      freeze: changes of entries are answered with Resharding, reads go on;
//	          wait for the transactions on entries
//	5  H → S  copy the rest
//	6  H      commit: one batch makes the directory sharded and removes the entries of others
//	7  H → S  activate the shard
//
// Requests at H for names of other shards get a Redirect with the epoch. An S that has not received 7 replies
// Resharding and asks H. If H or an S fails before 6, nothing has happened: H orders the drafts dropped, and a draft
// that misses the order learns so from H. If S fails after 6, its names are unavailable until it returns (EIO); the
// others stay available. If the outcome of 6 is unknown (metadata.ErrUnknownOutcome), 6 is repeated until it succeeds:
// until then the directory stays frozen, the drafts stay, and a draft that asks waits. A merge does the same.
//
// # Merging
//
// A sharded directory is merged before it is removed, or replaced by a rename: empty shards freeze; when all are
// frozen, one batch at H makes the directory an ordinary empty one, and the shards are dropped. If a shard is not empty
// or not reachable, the merge is cancelled, and the other shards thaw. Freezes are numbered: a reply to an older report
// thaws no later freeze.
//
// # Attributes
//
// Only H has the inode. Changes of entries on other nodes reach its link count and times through reports, after
// Config.Delay. A change of mode, owner, group or layout reaches the shards before it is acknowledged; unreachable
// shards get it with their next report.
package shard
