package metadata

import (
	"context"
	"fmt"
	"math"
	"syscall"
	"time"
)

// NodeID is a node's index in the job's host list. It never changes during the job.
type NodeID uint16

// MaxNodes is the maximum number of nodes of a job, given by the bits of an Ino for its home.
const MaxNodes = 1 << 15

// Epoch counts the versions of the cluster map. Zero means that there is no map yet.
type Epoch uint64

// Ino is an inode number. See the package comment for its bits.
type Ino uint64

const (
	// RootIno is the root directory of the live realm; its home is node 0.
	RootIno Ino = 16
	// FirstIno is the first counter value that a store hands out.
	FirstIno Ino = 1024

	sealedBit  Ino = 1 << 63
	homeShift      = 48
	movedShift     = 39
)

// MaxCounter is the greatest counter value of a live Ino.
const MaxCounter = 1<<movedShift - 1

// copiedBit marks the objects of files with several copies (Attr.Object).
const copiedBit Ino = 1 << (homeShift - 1)

// MaxMoved limits the parts of a file that can have a copy in place of a lost one, to the first parts of the file.
const MaxMoved = 1<<(homeShift-1-movedShift) - 1

// LiveIno builds the number of a live inode.
func LiveIno(home NodeID, counter uint64) Ino {
	return Ino(home)<<homeShift | Ino(counter)&MaxCounter
}

// DatasetID numbers the datasets of a job from 1.
type DatasetID uint16

// DirPart is the part number of the directories of a dataset; sequence 0 in it is the root of the dataset.
const DirPart = 1<<16 - 1

// SealedIno builds the number of a sealed inode. One node numbers all inodes of a part during staging, so that no
// number needs agreement.
func SealedIno(ds DatasetID, part uint16, seq uint32) Ino {
	return sealedBit | Ino(ds)<<homeShift | Ino(part)<<32 | Ino(seq)
}

// Sealed reports whether i belongs to a sealed dataset.
func (i Ino) Sealed() bool { return i&sealedBit != 0 }

// Home returns the node that keeps the record of a live inode.
func (i Ino) Home() NodeID { return NodeID(i >> homeShift & (MaxNodes - 1)) }

// Counter returns the number of a live inode on its home.
func (i Ino) Counter() uint64 { return uint64(i & MaxCounter) }

// Copied reports whether i is the number of the objects of a file with several copies. A node serves reads of such an
// object only while it is sure that no other copy is newer.
func (i Ino) Copied() bool { return i&(sealedBit|copiedBit) == copiedBit }

// File returns the inode whose objects have the number i.
func (i Ino) File() Ino {
	if i.Copied() {
		return i &^ (copiedBit | MaxMoved<<movedShift)
	}
	return i
}

// Moved returns the number for the object i, which has the given part of its file, on a node that replaces a lost node:
// the replacement may already have another part of the file under i.
func (i Ino) Moved(part int) Ino { return i.File() | copiedBit | Ino(part+1)<<movedShift }

// MovedPart returns the part for which Moved returned the number i; false if Moved did not return i.
func (i Ino) MovedPart() (part int, ok bool) {
	part = int(i>>movedShift&MaxMoved) - 1
	return part, i.Copied() && part >= 0
}

// Dataset returns the dataset of a sealed inode.
func (i Ino) Dataset() DatasetID { return DatasetID(i >> homeShift & (MaxNodes - 1)) }

// Part returns the part of a sealed inode.
func (i Ino) Part() uint16 { return uint16(i >> 32) }

// Seq returns the sequence number of a sealed inode within its part.
func (i Ino) Seq() uint32 { return uint32(i) }

// String formats i as "live 3/1041" or "sealed 1/0/17".
func (i Ino) String() string {
	if i.Sealed() {
		return fmt.Sprintf("sealed %d/%d/%d", i.Dataset(), i.Part(), i.Seq())
	}
	return fmt.Sprintf("live %d/%d", i.Home(), i.Counter())
}

// Time is nanoseconds since the Unix epoch.
type Time int64

// TimeOf converts from the standard library.
func TimeOf(t time.Time) Time { return Time(t.UnixNano()) }

// Time converts to the standard library.
func (t Time) Time() time.Time { return time.Unix(0, int64(t)) }

// LayoutKind is the way in which a file's data is distributed over nodes.
type LayoutKind uint8

const (
	// Striped distributes chunks over all nodes that were up at Layout.Epoch.
	Striped LayoutKind = 0
	// Local puts all chunks on Layout.Node.
	Local LayoutKind = 1
	// Overflow stores the chunks on no node: the file belongs to a dataset, did not fit on the nodes, and is read from
	// the source.
	Overflow LayoutKind = 2
)

// DefaultChunkSize is the chunk size of live files, in bytes.
const DefaultChunkSize = 1 << 20

// Layout describes how the bytes of a file are distributed. The first write freezes it, so that the place of a byte can
// always be computed from it.
type Layout struct {
	Kind      LayoutKind
	Copies    uint8  // 0 and 1 mean one copy; at most MaxCopies
	Node      NodeID // Local only
	ChunkSize uint32 // bytes, a power of two; 0 is DefaultChunkSize
	Width     uint16 // number of nodes that hold chunks of the file; 0: the default; AllNodes: all
	Epoch     Epoch  // the map epoch whose Up nodes form the stripe
}

const (
	// DefaultWidth is the number of nodes that hold chunks of a scratch file: enough for its bandwidth, and few enough
	// that a large file does not die with any one of a thousand nodes. Files of a dataset are fetched again after a
	// loss, and are spread over all nodes.
	DefaultWidth = 4
	// AllNodes, as Layout.Width, means all nodes.
	AllNodes = math.MaxUint16
)

// MaxCopies is the maximum number of copies of a file's data.
const MaxCopies = 2

// Copied reports whether the data is on two nodes, if two nodes were available.
func (l Layout) Copied() bool { return l.Copies > 1 }

// Chunk returns the effective chunk size, in bytes.
func (l Layout) Chunk() int64 {
	if l.ChunkSize == 0 {
		return DefaultChunkSize
	}
	return int64(l.ChunkSize)
}

// Attr holds the attributes of an inode. Mode has the file type and the permission bits as in stat(2).
type Attr struct {
	Ino    Ino
	Mode   uint32
	Nlink  uint32
	UID    uint32
	GID    uint32
	Rdev   uint32
	Size   int64 // bytes; of a symbolic link, the length of its target
	Atime  Time
	Mtime  Time
	Ctime  Time
	Layout Layout // for a directory: inherited by new files
	Before Time   // in the answer to Setattr: the Ctime before the change; else 0
}

// Object returns the number under which the nodes store the data of the file.
func (a *Attr) Object() Ino {
	if a.Layout.Copied() && !a.Ino.Sealed() {
		return a.Ino | copiedBit
	}
	return a.Ino
}

// Entry is a name in a directory. Mode has at least the file type. Attr is set if the inode has the same home as the
// directory.
type Entry struct {
	Name string
	Ino  Ino
	Mode uint32
	Attr *Attr
}

// MaxName is the longest name of an entry, in bytes.
const MaxName = 255

// New describes an inode to be created. Mode has the type and the permissions.
type New struct {
	Mode   uint32
	UID    uint32
	GID    uint32
	Rdev   uint32
	Target string // of a symbolic link
	Layout Layout // unset fields are inherited: Layout.Under
}

// Set is the set of valid fields of a Change.
type Set uint32

// The fields of a Change.
const (
	SetMode Set = 1 << iota
	SetUID
	SetGID
	SetSize  // exactly Size: a truncate
	GrowSize // at least Size: after a write
	SetAtime
	SetMtime
	AtimeNow // the store's clock
	MtimeNow
	SetLayout     // all of Layout; only for a directory
	SetLayoutKind // Layout.Kind and Layout.Node; also for an empty file
	SetChunkSize  // Layout.ChunkSize; also for an empty file
	DropSetIDs    // clears setuid, and setgid if the group may execute; not for directories; before SetMode
	SetWidth      // Layout.Width; also for an empty file
	SetCopies     // Layout.Copies; also for an empty file
)

// SetLayoutField has all fields of a layout that can be set one by one.
const SetLayoutField = SetLayoutKind | SetChunkSize | SetWidth | SetCopies

// SetIDs returns the bits of mode that DropSetIDs clears. It keeps setgid on a file that its group may not execute,
// where it marks mandatory locks, and on a directory, where it is inherited.
func SetIDs(mode uint32) uint32 {
	drop := uint32(syscall.S_ISUID)
	if mode&syscall.S_IXGRP != 0 {
		drop |= syscall.S_ISGID
	}
	if mode&syscall.S_IFMT == syscall.S_IFDIR {
		drop = 0
	}
	return mode & drop
}

// Change is a request to change attributes; only the fields in Set are valid. Ctime always becomes the store's time.
// The layout of a file that has ever had data is frozen: EBUSY.
type Change struct {
	Set    Set
	Mode   uint32 // permission bits; the type cannot change
	UID    uint32
	GID    uint32
	Size   int64
	Atime  Time
	Mtime  Time
	Layout Layout
	// Freeze, of a SetSize, is the Append.Freeze under which the data was cut off. If that freeze has ended, other
	// nodes may have published sizes since that were not cut off, and the change fails with ECANCELED. 0: nothing was
	// cut off.
	Freeze uint64
}

// RenameFlags has the flags of renameat2(2).
type RenameFlags uint32

// The supported flags; any other is EINVAL.
const (
	RenameNoReplace RenameFlags = 1
	RenameExchange  RenameFlags = 2
)

// Rename describes a rename.
type Rename struct {
	Dir     Ino
	Name    string
	NewDir  Ino
	NewName string
	Flags   RenameFlags
}

// Namespace accesses the entries of directories. Errors are errnos (errors.As): ENOENT, EEXIST, ENOTDIR, EISDIR,
// ENOTEMPTY, ENAMETOOLONG, EINVAL for an invalid name, EROFS in a sealed dataset, EIO for a damaged record, and
// EHOSTDOWN if the home of an inode is Down.
type Namespace interface {
	// Lookup returns the entry name of dir.
	Lookup(ctx context.Context, dir Ino, name string) (Entry, error)
	// Create creates an inode other than a directory, and enters it in dir. With EEXIST, the Attr (or at least its Ino
	// and Mode) is that of the existing inode, so that an open needs no second call.
	Create(ctx context.Context, dir Ino, name string, n New) (Attr, error)
	// Unlink removes the entry name of dir, which must not be a directory. When the inode has no more links, it becomes
	// an orphan: readable by number until it is closed everywhere. The returned entry has the Attr after the change, if
	// the home of the inode is here.
	Unlink(ctx context.Context, dir Ino, name string) (Entry, error)
	// Rename moves an entry, and returns the replaced entry, if any, as Unlink does.
	Rename(ctx context.Context, r Rename) (replaced *Entry, err error)
	// ReadDir returns at most limit entries whose names sort after the name after ("" is the start), in byte order.
	// Fewer than limit means the end. "." and ".." are not included.
	ReadDir(ctx context.Context, dir Ino, after string, limit int) ([]Entry, error)
}

// Inodes accesses the inode records.
type Inodes interface {
	// Getattr returns the attributes of ino; ENOENT if there is no such inode.
	Getattr(ctx context.Context, ino Ino) (Attr, error)
	// Setattr applies c and returns the new attributes, with Before.
	Setattr(ctx context.Context, ino Ino, c Change) (Attr, error)
	// Readlink returns the target of a symbolic link; EINVAL for anything else.
	Readlink(ctx context.Context, ino Ino) (string, error)
}

// Directories creates and removes directories, and links files.
type Directories interface {
	// Mkdir creates a directory and enters it in dir.
	Mkdir(ctx context.Context, dir Ino, name string, n New) (Attr, error)
	// Rmdir removes an empty directory. It returns ENOTEMPTY or ENOTDIR for anything else.
	Rmdir(ctx context.Context, dir Ino, name string) error
	// Link enters the existing inode ino as name in dir. It returns EPERM for a directory, and EEXIST for a taken name.
	Link(ctx context.Context, ino Ino, dir Ino, name string) (Attr, error)
}

// Store is a namespace: one node's part, or all of it through a client.
type Store interface {
	Namespace
	Inodes
	Directories
}

// NodeStore is a home: the part of the live realm on one node, as clients see it.
type NodeStore interface {
	Store
	ShardReader
	Xattrs
}
