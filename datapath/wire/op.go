package wire

import (
	"fmt"
	"strconv"
)

// Op is the operation that a frame requests.
type Op uint16

// The ops of a node's namespace (metadata.Store).
const (
	OpLookup   Op = 2
	OpCreate   Op = 3
	OpUnlink   Op = 4
	OpRename   Op = 5
	OpReadDir  Op = 6
	OpGetattr  Op = 7
	OpSetattr  Op = 8
	OpReadlink Op = 9
	OpMkdir    Op = 11
	OpRmdir    Op = 12
	OpLink     Op = 13

	// OpMirror sends changes of a home to its partner.
	OpMirror Op = 14
	// OpStandIn, OpStandInPeer and OpStandInOnce are requests from or to a home that another node stands in for: those
	// of PurposePeer, those that are ReplyCached, and the others.
	OpStandIn     Op = 15
	OpStandInPeer Op = 16
	OpStandInOnce Op = 17
)

// The ops of transactions between homes (metadata.TxPeer).
const (
	OpPrepare    Op = 19
	OpCommit     Op = 20
	OpAbort      Op = 21
	OpOutcome    Op = 22
	OpRenameLock Op = 23
	OpAncestor   Op = 24
)

// The ops of open files: requests to a home (metadata.Opens), and requests of a home to a client (metadata.Recaller).
const (
	OpOpen       Op = 25
	OpCreateOpen Op = 26
	OpClosed     Op = 27
	// OpRecall asks a client which files it has open.
	OpRecall Op = 28
	// OpRemoveObjects removes many objects for the home of their files.
	OpRemoveObjects Op = 29
	OpAppend        Op = 30
	// OpOpenAhead opens files that will probably be read soon (metadata.AheadOpener).
	OpOpenAhead Op = 18
)

// The ops of locks: requests to a home (metadata.Locks), and to a client that waits (metadata.Woken).
const (
	OpLock     Op = 38
	OpTestLock Op = 39
	OpWake     Op = 40
)

// The ops of a node's data (datapath.Store).
const (
	OpRead         Op = 32
	OpWrite        Op = 33
	OpSync         Op = 34
	OpTruncate     Op = 35
	OpRemoveObject Op = 36
	OpSpace        Op = 37
)

// The ops of extended attributes (metadata.Xattrs).
const (
	OpGetxattr    Op = 41
	OpSetxattr    Op = 42
	OpListxattr   Op = 43
	OpRemovexattr Op = 44
)

// The ops that shape a node's objects (datapath.Shaper).
const (
	OpAllocate  Op = 45
	OpPunch     Op = 46
	OpData      Op = 47
	OpAllocated Op = 48
)

// The ops of sharded directories (metadata.Shards).
const (
	OpShardCreate Op = 49
	OpShardFill   Op = 50
	OpShardChange Op = 51
	OpShardReport Op = 52
	OpShardRead   Op = 53
)

// The ops of leases on names and inodes (metadata.Leaser). A home sends OpRevoke to the lease holders.
const (
	OpReadDirLease Op = 31
	OpLookupLease  Op = 56
	OpGetattrLease Op = 57
	OpRevoke       Op = 58
)

// OpDrain is answered by package rpc itself. It is the first request on a connection that replaces broken ones, and is
// answered once no request of those connections runs any more, nor will.
const OpDrain Op = 59

// The ops of file data with a checksum.
const (
	// OpReadIfPresent fails with EAGAIN if the node does not have the data yet.
	OpReadIfPresent Op = 54
	// OpReadMany reads many small files, except those that need a fetch.
	OpReadMany    Op = 55
	OpReadSummed  Op = 60
	OpWriteSummed Op = 61
)

// OpCachedReply is answered by package rpc itself, too. After a lost connection was drained, it asks for the reply to a
// request that was lost with it.
const OpCachedReply Op = 62

// OpPutPieces writes many small pieces of dataset files.
const OpPutPieces Op = 63

// FirstControl is the first op whose body is JSON.
const FirstControl Op = 64

// The control ops.
const (
	// OpReport is a node's heartbeat to the control group; the reply contains the View.
	OpReport Op = 64
	// OpPropose forwards a registry command to the leader.
	OpPropose Op = 65
	// OpTask starts a task on a node.
	OpTask Op = 66
	// OpTaskPoll asks a node for the progress of a task.
	OpTaskPoll Op = 67
	// OpTaskCancel ends a task early.
	OpTaskCancel Op = 68
	// OpStageBoundary hands over the state at the end of a region.
	OpStageBoundary Op = 69
	// OpManifest reads a piece of a manifest.
	OpManifest Op = 70
	// OpStatus asks a node for its status.
	OpStatus Op = 73
	// OpStageAbort ends the stage-in of a dataset that failed.
	OpStageAbort Op = 74
	// OpInventory reads some of a home's records, for a check of the whole tree.
	OpInventory Op = 75
	// OpObjects lists some of the objects of live files on a node.
	OpObjects Op = 76
	// OpFillOffer offers to fetch pieces of a dataset for the node that owns them.
	OpFillOffer Op = 77
	// OpFillComplete reports the result of an offer.
	OpFillComplete Op = 78
	// OpMissing asks a home which of some inodes no longer exist.
	OpMissing Op = 79
	// OpReferenced asks a node which of the sender's inodes its entries refer to.
	OpReferenced Op = 80
	// OpDropPages makes a node drop the page cache of sealed files.
	OpDropPages Op = 81
	// OpStandbyReplicate stores files of a stage-in on the standby of its coordinator.
	OpStandbyReplicate Op = 82
	// OpScan makes a node scan some directories for the coordinator.
	OpScan Op = 83
	// OpPlanState asks a node for its progress through the access plan of a dataset.
	OpPlanState Op = 84
	// OpTraining asks a node how training there has read the epochs of a dataset.
	OpTraining Op = 85
)

// OpRenewLease renews the session of a node's leases at a home (metadata.Leaser).
const OpRenewLease Op = 86

// OpCopyRange writes a range of a new copy that replaces a lost one.
const OpCopyRange Op = 87

// MaxOp is greater than every op; it is the length of a table indexed by Op.
const MaxOp Op = 88

var opNames = [MaxOp]string{
	OpLookup: "lookup", OpCreate: "create", OpUnlink: "unlink", OpRename: "rename", OpReadDir: "readdir",
	OpGetattr: "getattr", OpSetattr: "setattr", OpReadlink: "readlink", OpMkdir: "mkdir",
	OpRmdir: "rmdir", OpLink: "link", OpMirror: "mirror", OpStandIn: "stand-in", OpStandInPeer: "stand-in-peer", OpStandInOnce: "stand-in-once",
	OpPrepare: "prepare", OpCommit: "commit", OpAbort: "abort", OpOutcome: "outcome", OpRenameLock: "rename-lock", OpAncestor: "ancestor",
	OpOpen: "open", OpCreateOpen: "create-open", OpClosed: "closed", OpRecall: "recall",
	OpRemoveObjects: "remove-objects", OpAppend: "append", OpOpenAhead: "open-ahead",
	OpLock: "lock", OpTestLock: "test-lock", OpWake: "wake",
	OpRead: "read", OpWrite: "write", OpSync: "sync", OpTruncate: "truncate", OpRemoveObject: "remove-object",
	OpSpace:    "space",
	OpGetxattr: "getxattr", OpSetxattr: "setxattr", OpListxattr: "listxattr", OpRemovexattr: "removexattr",
	OpAllocate: "allocate", OpPunch: "punch", OpData: "data", OpAllocated: "allocated",
	OpShardCreate: "shard-create", OpShardFill: "shard-fill", OpShardChange: "shard-change",
	OpShardReport: "shard-report", OpShardRead: "shard-read",
	OpReadDirLease: "readdir-lease", OpLookupLease: "lookup-lease", OpGetattrLease: "getattr-lease", OpRevoke: "revoke",
	OpDrain: "drain", OpCachedReply: "cached-reply", OpReadIfPresent: "read-if-present", OpReadMany: "read-many", OpReadSummed: "read-summed", OpWriteSummed: "write-summed", OpPutPieces: "put-pieces",
	OpReport: "report", OpPropose: "propose", OpTask: "task", OpTaskPoll: "task-poll",
	OpTaskCancel: "task-cancel", OpStageBoundary: "stage-boundary", OpManifest: "manifest",
	OpStatus: "status", OpStageAbort: "stage-abort",
	OpInventory: "inventory", OpObjects: "objects",
	OpFillOffer: "fill-offer", OpFillComplete: "fill-complete",
	OpMissing: "missing", OpReferenced: "referenced", OpDropPages: "drop-pages",
	OpStandbyReplicate: "standby-replicate", OpScan: "scan", OpPlanState: "plan-state", OpTraining: "training", OpRenewLease: "renew-lease",
	OpCopyRange: "copy-range",
}

// Known reports whether o is an op of this version.
func (o Op) Known() bool { return o < MaxOp && opNames[o] != "" }

// String returns the op's name as in the package comment.
func (o Op) String() string {
	if o.Known() {
		return opNames[o]
	}
	return "op " + strconv.Itoa(int(o))
}

// MarshalText encodes the op by name, as in keys of JSON maps.
func (o Op) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (o *Op) UnmarshalText(b []byte) error {
	for op, name := range opNames {
		if name != "" && name == string(b) {
			*o = Op(op)
			return nil
		}
	}
	return fmt.Errorf("%q is no operation", b)
}

// Reads reports whether a request only reads, so that an attempt whose reply was lost has no effect.
func (o Op) Reads() bool {
	switch o {
	case OpLookup, OpReadDir, OpGetattr, OpReadlink, OpGetxattr, OpListxattr, OpShardRead, OpLookupLease, OpGetattrLease, OpReadDirLease, OpRenewLease,
		OpTestLock, OpCachedReply, OpRead, OpReadIfPresent, OpReadMany, OpReadSummed, OpSpace, OpData, OpAllocated:
		return true
	}
	return false
}

// Repeatable reports whether a request whose reply was lost may be repeated once the first one has ended: it only
// reads, or is idempotent. Sync is not repeatable, because the disk reports an error only once.
func (o Op) Repeatable() bool {
	switch o {
	case OpLock, OpSetattr, OpOpen, OpOpenAhead, OpAppend, OpWrite, OpWriteSummed, OpPutPieces, OpTruncate, OpRemoveObject, OpAllocate, OpPunch:
		return true
	}
	return o.Reads()
}

// Purpose returns the purpose of the connections that carry the op. Large bodies then cannot delay small calls, and
// calls that may wait delay neither the calls for which they wait nor heartbeats.
func (o Op) Purpose() Purpose {
	switch o {
	case OpRead, OpWrite, OpReadIfPresent, OpReadMany, OpReadSummed, OpWriteSummed, OpPutPieces, OpCopyRange, OpTask, OpTaskPoll, OpTaskCancel, OpStageBoundary, OpStageAbort, OpManifest,
		OpInventory, OpObjects, OpMissing, OpReferenced, OpDropPages, OpStandbyReplicate, OpScan:
		return PurposeBulk
	case OpPrepare, OpCommit, OpAbort, OpOutcome, OpRenameLock, OpAncestor,
		OpShardCreate, OpShardFill, OpShardChange, OpShardReport, OpRevoke, OpReport, OpStandInPeer:
		return PurposePeer
	case OpMirror:
		return PurposeMirror
	}
	return PurposeMeta
}

// StandIn returns the op that carries a request of o from or to a home that another node stands in for.
func (o Op) StandIn() Op {
	switch {
	case o.Purpose() == PurposePeer:
		return OpStandInPeer
	case o.ReplyCached():
		return OpStandInOnce
	}
	return OpStandIn
}

// ForHome reports whether the op is for a home, which another node may stand in for, and not for the node itself, its
// data or its client.
func (o Op) ForHome() bool {
	switch o {
	case OpMirror, OpStandIn, OpStandInPeer, OpStandInOnce, OpRecall, OpRemoveObjects, OpWake, OpRevoke, OpRead, OpWrite, OpSync, OpTruncate, OpRemoveObject, OpSpace,
		OpAllocate, OpPunch, OpData, OpAllocated, OpReadIfPresent, OpReadMany, OpReadSummed, OpWriteSummed, OpDrain, OpCachedReply, OpPutPieces:
		return false
	}
	return o < FirstControl || o == OpInventory || o == OpMissing || o == OpReferenced || o == OpRenewLease
}

// maxData returns the most data in a frame of the op.
func (o Op) maxData() uint32 {
	if o == OpReadMany {
		return MaxMany
	}
	return MaxData
}
