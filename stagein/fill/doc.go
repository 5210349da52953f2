// Package fill fetches the files of a published dataset to their owners, and is called before a file is read.
//
//	demand read ──▶ Need ──▶ flights (one fetch for all readers of a piece) ──▶ fetchPiece ──▶ journal ──▶ present
//	Run ──▶ runs of 4 MiB of an archive: offer pieces to their owners, read what they grant, transfer, complete
//	    ├─▶ large pieces, files of a directory, ordered fills: piece by piece, workers behind the semaphore
//	    └─▶ repeated when the map changes: files of a lost node are fetched by the nodes that take its place
//	ReadThrough, ReadOverflow ──▶ cache: files that no node stores, read from the source and verified
//	ReadMany ──▶ the same cache: neighbours in an archive by one request of the source, for prefetch
//
// Work stealing: a node that has read its runs continues with runs that no node has begun. An owner grants each piece
// to one reader (Accept), and fetches it itself if that reader withdraws, is lost, or exceeds offerTimeout.
//
// Admission: while readers wait, the limiter admits read-ahead only as far as the source answers without queueing; the
// semaphore admits pieces in the order of the fill. While readers wait for files of a directory, all workers but one
// pause, and that one rests half of the time, unless readers follow the order: then the next files of the order are the
// next reads, and a node that paused would fall behind. If readers mostly wait, the pause continues over short gaps
// (load), as reads of all workers would queue before the next demand read. While readers wait for files of an archive,
// a run is read and completed in parts, with a rest after each.
//
// # Invariants
//
// A piece is present only after its bytes are stored and its checksum is in the journal; a completion delivered twice
// counts once. No data that differs from a known checksum is served: the piece is reread, and then reported
// (Unreadable). A file that does not fit on the node overflows: its owner reads it through for all nodes. A file that
// the source does not give fails alone (Missing).
//
// # Locks
//
//	flights.mu
//	├─ overflow.mu ── pieceSet.mu
//	├─ pieceSet.mu
//	└─ Fill.mu
//
// The mutexes of limiter, semaphore and unreadables are taken alone. No mutex is held across a call to another node, a
// read or a write.
//
// The package must not know how a dataset was scanned or ingested, nor the packages scan and ingest: it receives
// Origins and Files. It knows no connection: other nodes are Peers.
package fill
