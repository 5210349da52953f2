package metadata

import (
	"context"
	"fmt"
	"syscall"
)

// A directory with very many entries is sharded: its entries are in shards, one on each node that was Up in the epoch
// of the split, and the hash of a name selects the shard (cluster.ShardMap). Its inode stays at its home.

// Redirect is the error of a node that does not keep the requested entry: Dir is sharded over the nodes of Epoch. With
// Epoch 0, ask the home of Dir.
type Redirect struct {
	Dir   Ino
	Epoch Epoch
}

// Error implements error.
func (e *Redirect) Error() string {
	if e.Epoch == 0 {
		return fmt.Sprintf("directory %v has no shard here: %v", e.Dir, syscall.EREMOTE)
	}
	return fmt.Sprintf("directory %v is split in epoch %d: %v", e.Dir, e.Epoch, syscall.EREMOTE)
}

// Unwrap returns the errno that crosses the wire.
func (e *Redirect) Unwrap() error { return syscall.EREMOTE }

// Resharding is the error of a node while the entries of a directory move: the same call will soon succeed, here or at
// another node.
type Resharding struct{ Dir Ino }

// Error implements error.
func (e *Resharding) Error() string {
	return fmt.Sprintf("directory %v is being split or merged: %v", e.Dir, syscall.EAGAIN)
}

// Unwrap returns the errno that crosses the wire.
func (e *Resharding) Unwrap() error { return syscall.EAGAIN }

// Shard names one shard of a directory. Gen numbers the splits of the directory; a later split has a greater one.
type Shard struct {
	Dir Ino
	Gen uint64
}

// NewShard describes a shard to be created: the nodes of all shards, in order, the seed of the hash, and the attributes
// that new entries inherit.
type NewShard struct {
	Shard
	Epoch Epoch
	Seed  uint64
	Nodes []NodeID
	Attr  Attr
}

// ShardOrder is an order of a home to a shard.
type ShardOrder uint8

// The orders of a home.
const (
	ShardActivate ShardOrder = 1 // the shard's entries are the directory's from now on
	ShardDrop     ShardOrder = 2 // delete the shard with its entries
	ShardFreeze   ShardOrder = 3 // refuse changes; ENOTEMPTY unless the shard is empty
	ShardThaw     ShardOrder = 4 // undo the freeze
	ShardSetAttr  ShardOrder = 5 // new entries inherit from these attributes
)

// ShardChange is an order with its arguments.
type ShardChange struct {
	Shard
	Order  ShardOrder
	Freeze uint64 // number of the freeze that the order belongs to
	Attr   Attr   // of ShardSetAttr and ShardActivate
}

// ShardReport reports a shard's state, and its changes of the directory's attributes, to the home.
type ShardReport struct {
	Shard
	Freeze  uint64 // number of the freeze; 0 is none
	Subdirs uint32 // subdirectories in this shard
	Mtime   Time   // last change of an entry
}

// ShardState is a shard's state in a home's answer.
type ShardState uint8

// The answers to a report.
const (
	ShardWait   ShardState = 1 // undecided: report again
	ShardActive ShardState = 2 // active, not frozen
	ShardUnused ShardState = 3 // not part of the directory: drop it
)

// ShardAnswer is a home's answer to a report. New entries inherit from Attr.
type ShardAnswer struct {
	State ShardState
	Attr  Attr
}

// Shards has the operations between the nodes of a sharded directory. All may be repeated; one with an outdated Gen
// returns ESTALE, or is ignored.
type Shards interface {
	// CreateShard creates an empty, inactive shard.
	CreateShard(ctx context.Context, n NewShard) error
	// FillShard enters es into an inactive shard; an entry with Ino 0 is removed from it.
	FillShard(ctx context.Context, s Shard, es []Entry) error
	// ChangeShard executes an order.
	ChangeShard(ctx context.Context, c ShardChange) error
	// ReportShard reports the shard of node by to the home of the directory.
	ReportShard(ctx context.Context, by NodeID, r ShardReport) (ShardAnswer, error)
	ShardReader
}

// ShardReader lists the entries of a directory on one node.
type ShardReader interface {
	// ReadShard is ReadDir of the entries on this node, without their Attrs. The caller assumes that dir was split in
	// epoch, or, with epoch 0, is not sharded; if that is wrong, it returns Redirect.
	ReadShard(ctx context.Context, dir Ino, epoch Epoch, after string, limit int) ([]Entry, error)
}
