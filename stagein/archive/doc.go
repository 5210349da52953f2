// Package archive reads the bytes of files where they lie in a source: in a directory, a tar, a compressed tar (from
// its beginning) or a zip archive. The single pass, the scan and the fill share it.
//
//	Fetcher      opens what a manifest.Origin points to, keeps archives open
//	Content      one file's bytes in its origin: Read takes a range of them, whatever the format
//	BlockReader  an archive as one stream of blocks, made of the pieces that a source.Region reads ahead
//	Unzipper     members of a zip archive out of a BlockReader, one after another
//	Unpacking    a compressed tar, unpacked from its beginning
//	Batcher      small pieces for the same node, stored with one message
//	Hasher       the xxh3-128 of a file; ChunkCRCs and HoleSum the CRC-32C of its chunks
//
// # Invariants
//
// A source that has changed since its scan is never served: Content.Unchanged is checked after each read. A member
// whose headers are known only from an index is compared with its headers when it is read; a wrong index is removed.
// Every buffer is from a bounded pool. Reading and unpacking have separate pools, so that a decoder that holds one
// buffer and waits for another cannot block the reads that feed it.
//
// # Locks
//
// Fetcher.mu and Batcher.mu. No lock is held while another is taken, nor across a read of the source or a store.
//
// # What it must not know
//
// Nodes' shares of work, plans, marks, which pieces are here, or how errors are handled.
package archive
