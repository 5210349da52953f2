package metadata

import (
	"context"
	"fmt"
	"time"
)

// TxID names a transaction: an operation that changes records of several homes.
// Its bits are those of a live Ino, and it comes from the same counter of the
// coordinator, so that none is ever used twice.
type TxID uint64

// Home is the node that coordinates the transaction.
func (t TxID) Home() NodeID { return Ino(t).Home() }

// String formats t so that its parts can be read: "3/1041".
func (t TxID) String() string { return fmt.Sprintf("%d/%d", t.Home(), Ino(t).Counter()) }

// EditKind says what an Edit does.
type EditKind uint8

// The kinds of edits. Dir and Name are an entry; those of the last five have
// none, and Ino is the inode that they change.
const (
	// EditKeep changes nothing: the entry names Ino, 0 is that there is none,
	// and goes on to do so until the end of the transaction.
	EditKeep EditKind = 1
	// EditEnter makes the entry name Ino, of type Mode. EEXIST if it is taken.
	EditEnter EditKind = 2
	// EditReplace is EditEnter over what is there, by the rules of rename: it
	// loses the name, and a directory, which has to be empty, goes. An entry
	// that names Ino already stays as it is. Ino is leaving ToDir in the same
	// transaction: ENOTEMPTY if the entry names that.
	EditReplace EditKind = 3
	// EditSwap makes the entry, which is there, name Ino instead; what it
	// named gets the name ToName in ToDir. ENOENT if it is not there.
	EditSwap EditKind = 4
	// EditLeave removes the entry, which names Ino.
	EditLeave EditKind = 5
	// EditMake makes the directory New, for which the participant chooses Ino.
	// ToDir and ToName are to name it.
	EditMake EditKind = 6
	// EditDrop removes an empty directory: ENOTEMPTY.
	EditDrop EditKind = 7
	// EditLink adds a link to a file: EPERM for a directory.
	EditLink EditKind = 8
	// EditUnlink takes a link from a file.
	EditUnlink EditKind = 9
	// EditMoved notes that the inode is now ToName in ToDir.
	EditMoved EditKind = 10
)

// MaxEdits is how many edits of one transaction one home has.
const MaxEdits = 4

// Edit is a change of one home's records in a transaction. See EditKind.
type Edit struct {
	Kind   EditKind
	Dir    Ino
	Name   string
	Ino    Ino
	Mode   uint32
	ToDir  Ino
	ToName string
	New    *New
}

// Vote is what a home says to its edits. What it tells of an inode is how it
// will be if the transaction is committed.
type Vote struct {
	// Old is what an entry of EditReplace or EditSwap names until then; nil
	// is nothing. It has an Attr if its inode is of this home: then this home
	// sees to it.
	Old *Entry
	// Attr is the inode of EditMake, EditLink or EditUnlink.
	Attr *Attr
}

// Participant is one home's side of a transaction that another coordinates.
type Participant interface {
	// Prepare promises that the edits can be committed, whatever happens until
	// Commit or Abort; operations that would break the promise wait for them.
	// EAGAIN if another transaction has made a promise that is in the way; it
	// never waits for one. After any error there is no promise.
	Prepare(ctx context.Context, tx TxID, edits []Edit) (Vote, error)
	// Commit makes the edits happen, all at once. It is not an error if the
	// transaction is not known: then it has been done.
	Commit(ctx context.Context, tx TxID) error
	// Abort takes the promise back, if there is one.
	Abort(ctx context.Context, tx TxID) error
}

// Outcome is what became of a transaction.
type Outcome uint8

// The outcomes.
const (
	Undecided Outcome = 0
	Committed Outcome = 1
	Aborted   Outcome = 2
)

// String is the outcome as a word.
func (o Outcome) String() string {
	switch o {
	case Undecided:
		return "undecided"
	case Committed:
		return "committed"
	case Aborted:
		return "aborted"
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// InDoubt is a transaction in which a home takes part and of whose end it has
// not heard.
type InDoubt struct {
	Tx     TxID
	Since  time.Time // when it was promised; zero if that was before the last start
	GaveUp bool      // the home has given it up
}

// Inventory is all that a store has, at one moment.
type Inventory struct {
	Self    NodeID
	Inodes  map[Ino]InventoryInode
	Entries map[Ino][]Entry // by directory; without Attrs
	Orphans map[Ino]bool
	// Open is the transactions that have not come to their end: those that are
	// promised, those that are decided and not known to all.
	Open []TxID
}

// InventoryInode is an inode of an Inventory. Parent and Name are of a directory: the entry
// that it believes to be named by.
type InventoryInode struct {
	Attr   Attr
	Parent Ino
	Name   string
}

// TxPeer is what the homes of a job are to each other.
type TxPeer interface {
	Participant
	// Outcome is what became of a transaction that this home coordinates.
	Outcome(ctx context.Context, tx TxID) (Outcome, error)
	// LockRename gives tx the lock under which directories move, which the home
	// of RootIno has, until UnlockRename or the end of its lease. EAGAIN if
	// another has it still, after a short wait.
	LockRename(ctx context.Context, tx TxID) error
	// UnlockRename gives the lock back, if tx has it.
	UnlockRename(ctx context.Context, tx TxID) error
	// Climb goes from the directory from to its parent, and so on, to the
	// first that is stop, that is RootIno or that has another home, and
	// returns it. EAGAIN if a transaction is about to move one of them.
	Ancestor(ctx context.Context, from, stop Ino) (Ino, error)
}
