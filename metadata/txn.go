package metadata

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// TxID names a transaction: an operation that changes records of several homes. It has the bits of a live Ino and is
// drawn from the same counter of the coordinator, so that none is ever reused.
type TxID uint64

// Home returns the coordinator.
func (t TxID) Home() NodeID { return Ino(t).Home() }

// String formats t as "3/1041".
func (t TxID) String() string { return fmt.Sprintf("%d/%d", t.Home(), Ino(t).Counter()) }

// EditKind is the kind of an Edit.
type EditKind uint8

// The kinds of edits. Dir and Name are an entry; the last five kinds have none, and change the inode Ino.
const (
	// EditKeep changes nothing: until the end of the transaction the entry names Ino, or does not exist if Ino is 0.
	EditKeep EditKind = 1
	// EditEnter makes the entry name Ino, of type Mode. It fails with EEXIST if the entry exists.
	EditEnter EditKind = 2
	// EditReplace is EditEnter over an existing entry, by the rules of rename: the old inode loses this name, and an
	// old directory, which must be empty, is removed. An entry that already names Ino stays. The same transaction moves
	// Ino out of ToDir: ENOTEMPTY if the entry names ToDir.
	EditReplace EditKind = 3
	// EditSwap makes an existing entry name Ino instead; its old inode is named ToName in ToDir. It fails with ENOENT
	// if there is no entry.
	EditSwap EditKind = 4
	// EditLeave removes the entry, which names Ino.
	EditLeave EditKind = 5
	// EditMake creates the directory New; the participant chooses Ino. It will be named ToName in ToDir.
	EditMake EditKind = 6
	// EditDrop removes an empty directory; it fails with ENOTEMPTY for any other.
	EditDrop EditKind = 7
	// EditLink adds a link to a file; it fails with EPERM for a directory.
	EditLink EditKind = 8
	// EditUnlink removes a link from a file.
	EditUnlink EditKind = 9
	// EditMoved records that the inode is now ToName in ToDir.
	EditMoved EditKind = 10
)

// MaxEdits is the maximum number of edits of a transaction at one home.
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

// Vote is the vote of a home on its edits. Its attributes are those after the commit.
type Vote struct {
	// Old is the previous inode of the entry of an EditReplace or EditSwap; nil if there was none. It has an Attr if
	// its home is this one, which then also changes that inode.
	Old *Entry
	// Attr is the inode of EditMake, EditLink or EditUnlink.
	Attr *Attr
}

// Participant is one home's side of a transaction that another home coordinates.
type Participant interface {
	// Prepare takes the locks that the edits need, so that they can be committed whatever happens; conflicting
	// operations wait for Commit or Abort. It returns EAGAIN if another transaction holds a lock; it never waits for
	// one. After an error nothing is prepared.
	Prepare(ctx context.Context, tx TxID, edits []Edit) (Vote, error)
	// Commit applies the edits, all at once. An unknown transaction is no error: it was already committed.
	Commit(ctx context.Context, tx TxID) error
	// Abort releases a prepared transaction, if there is one.
	Abort(ctx context.Context, tx TxID) error
}

// ErrUnknownOutcome is in the error of a change that may have taken effect, because another node has it, or may still
// get it.
var ErrUnknownOutcome = errors.New("the change may have taken effect")

// ErrMoved means that another node now has the home that was asked, and that nothing was done. The caller repeats the
// call there.
var ErrMoved error = syscall.ENOLINK

// Outcome is the outcome of a transaction.
type Outcome uint8

// The outcomes.
const (
	Undecided Outcome = 0
	Committed Outcome = 1
	Aborted   Outcome = 2
)

// String returns the outcome as a word.
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

// InDoubt is a prepared transaction whose outcome a participant does not know.
type InDoubt struct {
	Tx     TxID
	Since  time.Time // when it was prepared; zero if that was before the last start
	GaveUp bool      // the participant has released its locks
}

// Inventory has all records of a store at one moment.
type Inventory struct {
	Self    NodeID
	Inodes  map[Ino]InventoryInode
	Entries map[Ino][]Entry // by directory; without Attrs
	Orphans map[Ino]bool
	// Open lists the unfinished transactions: prepared ones, and decided ones that some participant may not know.
	Open []TxID
}

// InventoryInode is an inode of an Inventory. For a directory, Parent and Name are the entry recorded in its inode.
type InventoryInode struct {
	Attr   Attr
	Parent Ino
	Name   string
}

// TxPeer is a home as other homes see it.
type TxPeer interface {
	Participant
	// Outcome returns the outcome of a transaction that this home coordinates.
	Outcome(ctx context.Context, tx TxID) (Outcome, error)
	// LockRename takes the lock for moving directories for tx. The home of RootIno keeps it until UnlockRename or the
	// end of its lease. It returns EAGAIN, after a short wait, if another transaction holds the lock.
	LockRename(ctx context.Context, tx TxID) error
	// UnlockRename releases the lock, if tx holds it. A LockRename that arrives later fails with ECANCELED.
	UnlockRename(ctx context.Context, tx TxID) error
	// Ancestor walks up from the directory from to the first directory that is stop, is RootIno or has another home,
	// and returns it. It returns EAGAIN if a prepared transaction moves one of them.
	Ancestor(ctx context.Context, from, stop Ino) (Ino, error)
}
