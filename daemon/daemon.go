// Package daemon is a node's server: it opens the stores, answers the other
// nodes, joins the job's control plane, stages datasets in, and tells its
// keeper how it fares. Its one idea is that a node knows its job from one job
// file and meets the others by address alone: no shared directory, no ssh.
//
// It knows nothing of mounts or of clients; whoever wires the program gives it
// what it needs of them as functions.
package daemon
