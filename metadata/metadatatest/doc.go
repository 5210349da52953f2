// Package metadatatest is the conformance suite of metadata.Store, for the store of one node, the
// stub of a remote one and a client that routes between many: each promise of the interfaces in
// package metadata has one test here, and only here.
//
// It must not depend on an implementation: it starts from an empty live realm, and accepts every freedom that the
// interfaces allow (an Entry without an Attr, a directory homed on any node).
package metadatatest
