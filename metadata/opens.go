package metadata

import "context"

// Run numbers the lives of a node's client: a later one is greater. Files that an earlier run had
// open are closed.
type Run uint64

// Holder is the client of a node that has files open.
type Holder struct {
	Node NodeID
	Run  Run
}

// Ticket numbers the opens of a client, so that a late close does not end a later open.
type Ticket uint64

// Opened is a file that a client has, or had, open.
type Opened struct {
	Ino    Ino
	Ticket Ticket
	// Unsure says that some node may have bytes of the file of which its home
	// was never told.
	Unsure bool
	// Flight is the append that the client has under way, and with Len 0 only
	// the number of its last one. Placed is what it has appended that not
	// everybody sees yet. They are for a Recalled.
	Flight Flight
	Placed []Extent
	Locks  []Lock // that it has on the file; for a Recalled too
}

// Extent is a piece of a file.
type Extent struct {
	Off int64
	Len int64
}

// End is the offset behind e.
func (e Extent) End() int64 { return e.Off + e.Len }

// Flight is an append under way. Its place is negative as long as the client
// has not heard where it is.
type Flight struct {
	Seq uint64
	Extent
}

// Append asks the home of a file for a place at its end. A client asks for one
// after the other, so that Seq says which of them are complete: all with less.
// The numbers of a run rise, over all its files.
type Append struct {
	Ino Ino
	Seq uint64
	// Len is how many bytes want a place; asked for again with the same Seq,
	// they have the same one. With 0 only the rest counts.
	Len int64
	// End is how long the file is by other writes of the client.
	End int64
	// Wait has the answer wait until the file has Wait bytes for everybody,
	// that is, until the appends before that are complete; not for ever.
	Wait int64
	// Unused is the first of the reservations before Seq at whose places nothing
	// was written; 0 is none. It names them because the home may never have heard
	// of the last one: then the place before it belongs to bytes that were written.
	Unused uint64
	// Freeze has the answer wait until no append is under way, and other
	// nodes wait until the size is set, or this one thaws the file, or a while.
	Freeze bool
	Thaw   bool
}

// Place is the answer to an Append: where the bytes go, and the attributes.
// The size is that which everybody sees; no append under way is below it.
type Place struct {
	Run  Run // of the home that answers
	Off  int64
	Tail int64 // behind all places that were given
	Attr Attr
	// Alone says that no other node has the file open.
	Alone bool
}

// Opens is what the home of live files does for those who have them open. A
// file that is open on some node stays what it is when its last name goes: it
// can be read, written and truncated through every handle. When the last node
// has closed it, or was given up, its home removes its data from all nodes.
type Opens interface {
	// Open notes that by has ino open, and returns its attributes. ENOENT if
	// there is no such inode, ESTALE if it has no name and is being removed.
	Open(ctx context.Context, by Holder, ino Ino, t Ticket) (Attr, error)
	// CreateOpen is Create of a file that by has open when it returns. With
	// an error, such as EEXIST, nothing is open.
	CreateOpen(ctx context.Context, by Holder, t Ticket, dir Ino, name string, n New) (Attr, error)
	// Closed notes that by has closed files. One that it has opened with a
	// later ticket stays open.
	Closed(ctx context.Context, by Holder, files []Opened) error
	// Append gives bytes that by wants to append their place.
	Append(ctx context.Context, by Holder, q Append) (Place, error)
}

// Recall asks a client what it has open of the files of one home.
type Recall struct {
	Home  NodeID // not sent: it is who asks
	Run   Run    // of the client on the home itself
	Only  []Ino  // these; none is all
	After Ino    // with all: those with greater numbers
}

// Recalled is the answer to a Recall.
type Recalled struct {
	Run Run
	// Floor is at most every ticket with which a file may be open that is
	// not in Files, because the answer to its create is still under way.
	Floor Ticket
	Files []Opened // by Ino
	More  bool     // there are others, after the last of Files
}

// Recaller is a client as the homes of what it has open know it.
type Recaller interface {
	Recall(q Recall) Recalled
}
