package metadata

import (
	"context"
	"fmt"
	"syscall"
)

// A directory with very many entries is sharded: its entries are in shards, one
// on each node that was Up in the epoch in which it was split, and the hash of
// a name says which (cluster.ShardMap). Its inode stays at its home.

// Redirect is the answer of a node that does not keep the entry it was asked
// for. The caller knows now where to ask: the directory Dir is split over the
// nodes of Epoch, or, with Epoch 0, its home knows.
type Redirect struct {
	Dir   Ino
	Epoch Epoch
}

// Error is error.
func (e *Redirect) Error() string {
	if e.Epoch == 0 {
		return fmt.Sprintf("directory %v has no shard here: %v", e.Dir, syscall.EREMOTE)
	}
	return fmt.Sprintf("directory %v is split in epoch %d: %v", e.Dir, e.Epoch, syscall.EREMOTE)
}

// Unwrap is the errno, by which it is known on the wire.
func (e *Redirect) Unwrap() error { return syscall.EREMOTE }

// Resharding is the answer of a node where the entries of a directory are just
// arriving or leaving: the same call works in a moment, here or elsewhere.
type Resharding struct{ Dir Ino }

// Error is error.
func (e *Resharding) Error() string {
	return fmt.Sprintf("directory %v is being split or merged: %v", e.Dir, syscall.EAGAIN)
}

// Unwrap is the errno, by which it is known on the wire.
func (e *Resharding) Unwrap() error { return syscall.EAGAIN }

// Shard names one node's shard of a sharded directory. Gen tells one life of
// the directory as a sharded one from another; a later one is greater.
type Shard struct {
	Dir Ino
	Gen uint64
}

// NewShard is what a node has to know to keep a shard: the nodes of all
// shards, in order, the seed of the hash, and what new entries inherit.
type NewShard struct {
	Shard
	Epoch Epoch
	Seed  uint64
	Nodes []NodeID
	Attr  Attr
}

// ShardOrder is what a home tells a shard to become.
type ShardOrder uint8

// The orders of a home.
const (
	ShardActivate ShardOrder = 1 // it is in force: its entries are the directory's
	ShardDrop     ShardOrder = 2 // it is of no use: forget it and what it has
	ShardFreeze   ShardOrder = 3 // accept nothing, if it is empty; ENOTEMPTY
	ShardThaw     ShardOrder = 4 // undo that freeze
	ShardSetAttr  ShardOrder = 5 // new entries inherit from these attributes
)

// ShardChange is an order with what belongs to it.
type ShardChange struct {
	Shard
	Order  ShardOrder
	Freeze uint64 // which freeze: of ShardFreeze and ShardThaw
	Attr   Attr   // of ShardSetAttr and ShardActivate
}

// ShardReport is what a shard tells its home: how it is, and what has
// changed in the directory's attributes by what was done here.
type ShardReport struct {
	Shard
	Freeze  uint64 // the freeze under which it is; 0 is none
	Subdirs uint32 // directories entered here
	Mtime   Time   // the last change of an entry here
}

// ShardState is what a home knows of a shard.
type ShardState uint8

// The answers to a report.
const (
	ShardWait   ShardState = 1 // it is not decided: ask again
	ShardActive ShardState = 2 // it is in force, and under no freeze
	ShardUnused ShardState = 3 // it never was, or is no more
)

// ShardAnswer is a home's answer to a report. Attr is what new entries inherit.
type ShardAnswer struct {
	State ShardState
	Attr  Attr
}

// Shards is what the nodes of a sharded directory do for each other. Filling,
// orders and reports may come twice; a Gen that is not the present one is
// ESTALE, or nothing where nothing is to be done.
type Shards interface {
	// CreateShard begins an empty shard that is not yet in force.
	CreateShard(ctx context.Context, n NewShard) error
	// FillShard enters es into a shard that is not yet in force; one
	// with Ino 0 is taken out.
	FillShard(ctx context.Context, s Shard, es []Entry) error
	// ChangeShard carries an order out.
	ChangeShard(ctx context.Context, c ShardChange) error
	// ReportShard tells the home of the directory about the shard of the
	// node by.
	ReportShard(ctx context.Context, by NodeID, r ShardReport) (ShardAnswer, error)
	ShardReader
}

// ShardReader lists what a node has of a directory.
type ShardReader interface {
	// ReadShard is ReadDir of the entries that this node keeps, without their
	// Attrs, for a caller that knows dir to be split in epoch; with epoch 0,
	// not to be sharded. Redirect if that is not so.
	ReadShard(ctx context.Context, dir Ino, epoch Epoch, after string, limit int) ([]Entry, error)
}
