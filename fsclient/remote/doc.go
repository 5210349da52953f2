// Package remote has the stubs of another node's stores: Store is its metadata.NodeStore and Data its datapath.Store,
// each method one call. Its one idea is that a stub adds nothing: no cache, no retry, no routing. The client above has
// those, behind the same interfaces.
//
// Errors are the peer's errnos, or, without an answer, those of package rpc. Reads and writes longer than a frame are
// split into several calls, one after the other.
package remote
