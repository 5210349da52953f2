// Package slurm tests Bivouac on a real Slurm. Its one idea is that a node is real enough to be killed: each has its
// own network, host name, processes and mounts, so that leftovers of a job are found on the node that has them.
//
// The tests (build tag "slurm", as root) start three clusters with the script "cluster" in this folder, and run jobs
// on them as the users alice and bob; tests run in parallel, each with a cluster to itself. Every test ends with the
// same check: are all nodes idle, none drained, and is no mount, process, directory, port or cgroup left on any of
// them? After a failed test its cluster is replaced, so that failures do not spread. The tests build nothing:
// bin/bivouac and bin/bivouac.so, or the directory BIVOUAC_BIN, must exist.
package slurm
