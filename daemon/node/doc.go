// Package node defines what every part of a daemon uses of its node, as three small interfaces:
//
//	Registry  the state agreed on by the job: read it, wait for a change, propose one
//	Caller    control calls and RPC stubs to every node, this one included
//	Process   goroutines that end with the daemon, immediate reports, the log
//
// The daemon implements them; package nodetest has a fake of each, so that a part can be tested without a cluster. The
// package also turns functions on messages into RPC handlers (Handle, HandleFrom, HandleJSON), since every part
// registers some.
//
// It must not know any part of the daemon, any store, or any mount.
package node
