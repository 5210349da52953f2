// Package slurm tests Bivouac where it has to live: on a real Slurm. Its one
// idea is that a node is real enough to be killed: each has its own network,
// host name, processes and mounts, so that what a job leaves behind is found on
// the node where it was left.
//
// The tests (build tag "slurm", as root) start three clusters with the script
// "cluster" in this folder, and run jobs on them as the users alice and bob; a
// test has a cluster for itself, beside others on theirs. Every
// test ends with the same question: are all nodes idle, none drained, and is
// no mount, process, directory, port or cgroup left on any of them? After a
// test that failed its cluster is made anew, so that failures do not spread.
// They build nothing: bin/bivouac and bin/bivouac.so, or the directory
// BIVOUAC_BIN, must be there.
package slurm
