// Package ingest reads a source in a single pass: each node reads its part from front to back, and stores each file at
// its owner as it comes. It is for sources whose content is known only when they have been read.
//
//	Share.Run ──▶ runTar      region: search for a header, speculate from there, verify with the boundary that comes
//	          ├─▶ runPacked   a compressed tar: one goroutine reads, one unpacks, this one parses
//	          ├─▶ runMany     whole archives, some at a time, each as a Share of its own
//	          ├─▶ runZip      a range of members
//	          └─▶ runDir      files, several at a time
//	each  ──▶ chain (parses, one member after another) ──▶ pusher (batches a node) ──▶ Target
//	      └─▶ stagein.Recorder: the records of the part
//
// A region hands its Boundary to the next as soon as it is known: for a member that the end of the region cuts, when its
// headers are parsed. A Checkpoint is a point before which all is stored and recorded; the same node goes on from it.
//
// # Invariants
//
// Each byte of the source is read once, but for the regions of which the speculation failed (Progress.Again). The objects of a failed
// speculation are removed, and its records are dropped. Each try of a part numbers its inodes by itself, except for
// the member that goes on in the next region, which has the same number in each try. A put holds its piece until it is
// stored: readers stop when the pool is empty, so a slow owner slows its reader down. flush comes before each wait for a
// buffer.
//
// # Locks
//
// Those of Recorder, Selection and generations. None is held while another is taken.
//
// The package must not know package fill, nor the life of a dataset after its manifest is built.
package ingest
