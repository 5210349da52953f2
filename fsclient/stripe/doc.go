// Package stripe reads and writes the data of files on the nodes that own it: several nodes at once, each with one
// object of the file. Its one idea is that everything follows from a file's attributes and the order of its nodes
// (package route); it keeps no state.
//
// A read of a dataset goes to the fastest of the nodes with the same bytes (package sources), and to another one if
// that node does not answer in time. It waits for bytes that their owner is fetching, and for an owner that is away for
// a moment, and it goes to the stand-in of an owner that is lost. Missing bytes are an error in a dataset, never zeros;
// in scratch they are a hole.
//
// A file with two copies is written to both, and read from any copy that counts by the cluster map (package copies).
//
// After a write that failed, each byte of its range is the old one or the new one. No byte of the write can arrive
// later.
//
// It does not know sizes that are not in the attributes, buffered writes, nor which nodes have a file open.
package stripe
