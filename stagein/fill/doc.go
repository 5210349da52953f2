// Package fill brings the files of a published dataset to their owners, and is called before a file is read.
//
//	demand read ──▶ Need ──▶ flights (one fetch for all readers of a piece) ──▶ fetchPiece ──▶ journal ──▶ present
//	Run ──▶ runs of 4 MiB of an archive: offer pieces to their owners, read what they grant, transfer, complete
//	    ├─▶ large pieces, files of a directory, ordered fills: piece by piece, workers behind the semaphore
//	    └─▶ repeated when the map changes: files of a lost node are fetched by the nodes that take its place
//	ReadThrough, ReadOverflow ──▶ cache: files that no node stores, read from the source and verified
//	ReadMany ──▶ the same cache: neighbours in an archive by one request of the source, for prefetch
//
// Work stealing: a node that has read its runs continues with runs that others have not begun. An owner grants each piece to
// one reader (Accept), and fetches it itself if that reader withdraws, is lost, or takes longer than offerTimeout.
//
// Admission: while readers wait, the limiter admits read-ahead only as far as the source answers without a queue; the
// semaphore lets those in first whose piece comes first in the order of the fill.
// While readers wait for files of a directory, all workers but one pause, and that one rests half of the time, unless readers
// follow the order: then the next files of the order are the next reads, and a node that paused would fall behind. If readers
// mostly wait, a short time without one is no pause of theirs: reads of all workers would queue before the next one (load).
// While readers wait for files of an archive, a run is read and completed in parts, with a rest after each.
//
// # Invariants
//
// A piece is present only when its bytes are stored and its checksum is in the journal; a completion that is delivered twice
// counts once. Nothing is served that differs from a checksum that is known: the piece is read again, and then reported
// (Unreadable). A file for which the node has no room overflows: its owner reads it through for all nodes. A source that
// does not give a file costs that file alone (Missing).
//
// # Locks
//
//	flights.mu
//	├─ overflow.mu ── pieceSet.mu
//	├─ pieceSet.mu
//	└─ Fill.mu
//
// The mutexes of limiter, semaphore and unreadables are taken alone. None is held across a call of another node, a
// read or a write.
//
// The package must not know how a dataset was scanned or ingested, nor packages scan and ingest: it is given Origins and
// Files. It knows no connection: other nodes are Peers.
package fill
