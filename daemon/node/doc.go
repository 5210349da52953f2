// Package node is what every part of a daemon needs of the node that it runs on,
// as three small interfaces:
//
//	Registry  what the job has agreed on: read it, wait for a change, propose one
//	Caller    control calls and RPC stubs to every node, this one included
//	Process   goroutines that end with the daemon, reports at once, the log
//
// The daemon implements them; package nodetest has a fake of each, so a part is
// tested without a cluster. The package also turns functions on messages into
// RPC handlers (Handle, HandleFrom, HandleJSON), since every part registers some.
//
// It must not know any part of the daemon, any store, or any mount.
package node
