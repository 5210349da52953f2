// Package cluster describes the nodes of a job, their states, and the placement of data on them. The Map is a value:
// the same Map gives the same answer on every node, so placement needs no table and no call. The package does no I/O.
//
// Placement is by rendezvous hashing (the node with the greatest hash wins), so that a node
// that goes Down moves only its own part:
//
//	a striped file's chunks   Order       over the nodes Up in the layout's epoch: never moves
//	a new directory           NewDirHome  its creator, or by DirHome over the nodes Up now; then fixed by its Ino
//	an entry of a directory   EntryHome   if it is sharded, over the nodes Up when it was split: never moves
//	a sealed file             FileOwner   over the nodes Up now; then fixed by the manifest
//	                          Balance     the same with bounded loads, where all files are known beforehand
//	a lost node's part of it  Holder      over the nodes Up now, while the node is Down
//	second copies             neighbour   behind another leaf switch: of the nodes Up in the layout's epoch for data, now for records
//	a sealed file's replicas  Replicas    over the nodes Up now; a stand-in is the first
//
// A View is sent as a Delta from the View that the receiver has. Nodes that have changed alike are ranges in it, so
// while a job starts, a leader sends a few bytes for each pair of nodes.
//
// A Map also records in which epochs each node was Up, for the layouts of earlier epochs.
package cluster
