package metadata

import "context"

// Run numbers the runs of a node's client; a later run has a greater number. A new run closes all files that an earlier
// run had open.
type Run uint64

// Holder is the client of a node that has files open.
type Holder struct {
	Node NodeID
	Run  Run
}

// Ticket numbers the opens of a client, so that a delayed close does not end a later open.
type Ticket uint64

// Opening describes how a client opens a file.
type Opening struct {
	Ticket Ticket
	// Maps requests the right to map the file shared and writable. One node has it at a time, because such mappings of
	// two nodes are not coherent.
	Maps bool
}

// Holding is the answer to an open.
type Holding struct {
	Attr  Attr
	Maps  bool // the client has the right that Opening.Maps requests, until it closes the file
	Alone bool // no other node has the file open
	// Run changes when the home has restarted; it is 0 until the restarted home has heard from all nodes. While it is
	// 0, a client that the home does not know may be writing.
	Run Run
}

// Opened is a file that a client has open or has closed.
type Opened struct {
	Ino    Ino
	Ticket Ticket
	// Unsure: a node may store bytes of the file that its home does not know about.
	Unsure bool
	// Outstanding is the client's append in progress; with Len 0 only its Seq counts, which is the last append's.
	// Written lists appended bytes that other nodes may not see yet. Both are set only in a Recalled.
	Outstanding Reservation
	Written     []Extent
	Locks       []Lock // held on the file; set only in a Recalled
	Maps        bool   // the client may have it mapped shared and writable; set only in a Recalled
}

// Extent is a byte range of a file.
type Extent struct {
	Off int64
	Len int64
}

// End returns the offset of the first byte after e.
func (e Extent) End() int64 { return e.Off + e.Len }

// Reservation is an append in progress. Its offset is negative until the client knows it.
type Reservation struct {
	Seq uint64
	Extent
}

// Append asks the home of a file for a place at its end. A client asks for one place at a time, so Seq implies that all
// appends with a smaller Seq are complete. Seq increases over all files of a run.
type Append struct {
	Ino Ino
	Seq uint64
	// Len is the number of bytes to reserve. Repeating a Seq returns the same place. With Len 0 nothing is reserved and
	// only the other fields count.
	Len int64
	// End is the file size that the client's other writes imply.
	End int64
	// Wait delays the answer until every node sees Wait bytes of the file, that is, until the
	// appends before that offset are complete, or a time limit passes.
	Wait int64
	// Unused is the first of the reservations just before Seq that were not written; 0 means none. It names the
	// reservation because the home may have missed the last one: then the place that it gave before holds written
	// bytes.
	Unused uint64
	// Freeze is the number of a truncate, unique among truncates; 0 is none. The answer is delayed until no append is
	// in progress. From then on the size does not grow and no append gets a place, until a Change with that number has
	// set the size, the client thaws the file, or a time limit passes. It returns ECANCELED if the freeze has ended.
	Freeze uint64
	Thaw   bool // ends the freeze with that number
}

// Announces reports whether q announces a truncate.
func (q *Append) Announces() bool { return q.Freeze != 0 && !q.Thaw }

// Place is the answer to an Append: the offset for the bytes, and the attributes. Every node may see Size; no append in
// progress lies below it.
type Place struct {
	Off  int64 // negative if the announced truncate must still wait for appends: announce it again
	Tail int64 // end of all reserved places
	Attr Attr
	// Alone: no other node has the file open. The client may buffer appends for a while (appends.AloneTerm) after it
	// asked, until a Recall names the file.
	Alone bool
}

// Opens tracks which nodes have the live files of a home open. A file that is open on some node outlives its last name:
// it can be read, written and truncated through every handle. When the last node has closed it, or was declared lost,
// the home removes its data from all nodes.
type Opens interface {
	// Open records that by has ino open, and returns its attributes. It returns ENOENT if there is no such inode, and
	// ESTALE if it has no name and is being removed.
	Open(ctx context.Context, by Holder, ino Ino, o Opening) (Holding, error)
	// CreateOpen is Create of a file that by has open when it returns. After an error, such as EEXIST, nothing is open.
	// With the name "" the file has no name, and its last close removes it unless Link has named it.
	CreateOpen(ctx context.Context, by Holder, o Opening, dir Ino, name string, n New) (Holding, error)
	// Closed records that by has closed files. A file that was opened again with a later ticket stays open.
	Closed(ctx context.Context, by Holder, files []Opened) error
	// Append reserves a place for bytes that by appends.
	Append(ctx context.Context, by Holder, q Append) (Place, error)
}

// OpenAhead is a file that a client opens before a process asks for it.
type OpenAhead struct {
	Ino    Ino
	Ticket Ticket
}

// AheadOpener is an optional interface of Opens.
type AheadOpener interface {
	// OpenAhead is Open of many files that by will probably read soon. It opens only files that have a name and that no
	// other node has open, and waits for none. It returns Holding.Run and the attributes of the opened files, in the
	// order of files.
	OpenAhead(ctx context.Context, by Holder, files []OpenAhead) ([]Attr, Run, error)
}

// Recall asks a client which files of one home it has open. For the files named in Only the client first sends its
// buffered appends, and it buffers no more until a later Place has Alone set.
type Recall struct {
	Home  NodeID // the caller; not sent
	Run   Run    // of the client on the home's own node
	Only  []Ino  // only these files; empty means all
	After Ino    // without Only: only greater inode numbers
}

// Recalled is the answer to a Recall.
type Recalled struct {
	Run Run
	// Floor is a lower bound for the tickets of open files that Files lacks because the answer to their create is still
	// in flight.
	Floor Ticket
	Files []Opened // by Ino
	More  bool     // more files follow the last of Files
	Busy  bool     // the buffered appends to the files in Only have not all arrived yet: ask again
}

// Recaller is a client as the homes of its open files see it.
type Recaller interface {
	Recall(q Recall) Recalled
}
