// Package ingest reads a source in a single pass: each node reads its part front to back, and stores each file at its
// owner as it arrives. It is for sources whose content is known only after they have been read.
//
//	Share.Run ──▶ runTar      region: search for a header, speculate from there, verify with the boundary that arrives
//	          ├─▶ runPacked   a compressed tar: one goroutine reads, one unpacks, this one parses
//	          ├─▶ runMany     whole archives, some concurrently, each as a Share of its own
//	          ├─▶ runZip      a range of members
//	          └─▶ runDir      files, several concurrently
//	each  ──▶ chain (parses, one member after another) ──▶ pusher (batches a node) ──▶ Target
//	      └─▶ stagein.Recorder: the records of the part
//
// A region passes its Boundary to the next as soon as it is known: for a cut member, once its headers are parsed. A
// Checkpoint is a point before which all data is stored and recorded; the same node resumes there.
//
// # Invariants
//
// Each byte of the source is read once, except in regions whose speculation failed (Progress.Again). The objects of a
// failed speculation are removed, and its records dropped. Each try of a part numbers its own inodes, except for the
// member that continues in the next region, which has the same number in each try. A put holds its piece until it is
// stored: readers stop when the pool is empty, so a slow owner slows its reader down (back-pressure). flush must be
// called before each wait for a buffer.
//
// # Locks
//
// The locks are those of Recorder, Selection and generations. None is held while another is taken.
//
// The package must not know package fill, nor the life of a dataset after its manifest is built.
package ingest
