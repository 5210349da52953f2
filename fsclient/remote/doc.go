// Package remote has the stubs of another node's stores: Store is its
// metadata.NodeStore and Data its datapath.Store, each method one call. Its one idea is
// that a stub adds nothing: no cache, no retry, no routing. The client above has those,
// behind the same interfaces.
//
// Errors are the peer's errnos, or those of package rpc without an answer. Reads and
// writes that are longer than a frame are cut into several calls, one after the other.
package remote
