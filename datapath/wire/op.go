package wire

import (
	"fmt"
	"strconv"
)

// Op is what a frame asks for.
type Op uint16

// The ops of a node's namespace (metadata.Store). 14 to 18 are not used again.
const (
	OpLookup   Op = 2
	OpCreate   Op = 3
	OpUnlink   Op = 4
	OpRename   Op = 5
	OpReadDir  Op = 6
	OpGetattr  Op = 7
	OpSetattr  Op = 8
	OpReadlink Op = 9
	OpReap     Op = 10
	OpMkdir    Op = 11
	OpRmdir    Op = 12
	OpLink     Op = 13
)

// The ops of homes among themselves (metadata.TxPeer).
const (
	OpPrepare    Op = 19
	OpCommit     Op = 20
	OpAbort      Op = 21
	OpOutcome    Op = 22
	OpRenameLock Op = 23
	OpAncestor   Op = 24
)

// The ops of a home for those who have its files open (metadata.Opens), and of
// a client for the homes (metadata.Recaller).
const (
	OpOpen       Op = 25
	OpCreateOpen Op = 26
	OpClosed     Op = 27
	// OpRecall asks a client what it has open.
	OpRecall Op = 28
	// OpRemoveObjects removes many objects; from the home of their files.
	OpRemoveObjects Op = 29
	OpAppend        Op = 30
)

// The ops of locks: of a home (metadata.Locks), and of a client that waits
// (metadata.Woken).
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

// The ops of wide directories (metadata.Sections).
const (
	OpShardCreate Op = 49
	OpShardFill   Op = 50
	OpShardChange Op = 51
	OpShardReport Op = 52
	OpShardRead   Op = 53
)

// The ops of leases on directories (metadata.Leaser). OpRevoke goes from a home
// to those who hold one.
const (
	OpLookupLease  Op = 56
	OpGetattrLease Op = 57
	OpRevoke       Op = 58
)

// OpDrain is of package rpc itself: it is the first request on a connection
// that follows others that broke. It is answered when no request of those runs
// any more, nor will.
const OpDrain Op = 59

// The ops of file data that is compared when it has arrived.
const (
	// OpReadIfPresent is EAGAIN if what it is of is not here yet.
	OpReadIfPresent Op = 54
	OpReadSummed    Op = 60
	OpWriteSummed   Op = 61
)

// OpCachedReply is of package rpc itself, too: it asks for the reply to a request
// that was lost with its connection, after that was drained.
const OpCachedReply Op = 62

// OpPutPieces writes many small pieces of datasets.
const OpPutPieces Op = 63

// FirstControl is the first op whose body is JSON.
const FirstControl Op = 64

// The control ops.
const (
	// OpReport is a node's heartbeat to the control group; the answer has the View.
	OpReport Op = 64
	// OpPropose forwards a registry command to the leader.
	OpPropose Op = 65
	// OpTask starts a task on a node.
	OpTask Op = 66
	// OpTaskPoll asks a node how far a task is.
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
	// OpInventory reads a piece of a home's records, for a check of the whole tree.
	OpInventory Op = 75
	// OpObjects lists some of the objects that a node has of live files.
	OpObjects Op = 76
	// OpFillOffer offers to bring pieces of a dataset to a node that is to have them.
	OpFillOffer Op = 77
	// OpFillComplete says what has become of them.
	OpFillComplete Op = 78
	// OpMissing asks a home which of some inodes are not there any more.
	OpMissing Op = 79
	// OpReferenced asks which inodes of the asker a node names.
	OpReferenced Op = 80
	// OpDropPages has a node forget what its kernel has of sealed files.
	OpDropPages Op = 81
	// OpStandbyReplicate has a node keep files of a stage-in that it may take over.
	OpStandbyReplicate Op = 82
	// OpScan has a node look at some of a tree for the one who scans it.
	OpScan Op = 83
)

// MaxOp is greater than every op, so that a table can be indexed by Op.
const MaxOp Op = 84

var opNames = [MaxOp]string{
	OpLookup: "lookup", OpCreate: "create", OpUnlink: "unlink", OpRename: "rename", OpReadDir: "readdir",
	OpGetattr: "getattr", OpSetattr: "setattr", OpReadlink: "readlink", OpReap: "reap", OpMkdir: "mkdir",
	OpRmdir: "rmdir", OpLink: "link",
	OpPrepare: "prepare", OpCommit: "commit", OpAbort: "abort", OpOutcome: "outcome", OpRenameLock: "moves", OpAncestor: "climb",
	OpOpen: "open", OpCreateOpen: "create-open", OpClosed: "closed", OpRecall: "recall",
	OpRemoveObjects: "remove-objects", OpAppend: "append",
	OpLock: "lock", OpTestLock: "test-lock", OpWake: "wake",
	OpRead: "read", OpWrite: "write", OpSync: "sync", OpTruncate: "truncate", OpRemoveObject: "remove-object",
	OpSpace:    "space",
	OpGetxattr: "getxattr", OpSetxattr: "setxattr", OpListxattr: "listxattr", OpRemovexattr: "removexattr",
	OpAllocate: "allocate", OpPunch: "punch", OpData: "data", OpAllocated: "allocated",
	OpShardCreate: "section-make", OpShardFill: "section-fill", OpShardChange: "section-change",
	OpShardReport: "section-report", OpShardRead: "names",
	OpLookupLease: "lookup-lease", OpGetattrLease: "getattr-lease", OpRevoke: "revoke",
	OpDrain: "drain", OpCachedReply: "recollect", OpReadIfPresent: "read-here", OpReadSummed: "read-summed", OpWriteSummed: "write-summed", OpPutPieces: "parcels",
	OpReport: "report", OpPropose: "propose", OpTask: "task", OpTaskPoll: "task-poll",
	OpTaskCancel: "task-cancel", OpStageBoundary: "stage-boundary", OpManifest: "manifest",
	OpStatus: "status", OpStageAbort: "stage-abort",
	OpInventory: "census", OpObjects: "objects",
	OpFillOffer: "fill-claim", OpFillComplete: "fill-landed",
	OpMissing: "gone", OpReferenced: "named", OpDropPages: "drop-pages",
	OpStandbyReplicate: "entrust", OpScan: "look",
}

// Known reports whether o is an op of this version.
func (o Op) Known() bool { return o < MaxOp && opNames[o] != "" }

// String is the op's name as in the package comment.
func (o Op) String() string {
	if o.Known() {
		return opNames[o]
	}
	return "op " + strconv.Itoa(int(o))
}

// MarshalText makes the op's name the key of JSON maps.
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

// Repeatable reports whether a request may be made again when its answer was
// lost, by who then knows that nothing of the first runs any more: one that
// only reads, or says what is to be rather than what is to change. Sync is not
// one of them, because the disk tells an error once.
func (o Op) Repeatable() bool {
	switch o {
	case OpLookup, OpReadDir, OpGetattr, OpReadlink, OpGetxattr, OpListxattr, OpShardRead, OpLookupLease, OpGetattrLease,
		OpLock, OpTestLock, OpCachedReply, OpRead, OpReadIfPresent, OpReadSummed, OpSpace, OpData, OpAllocated,
		OpSetattr, OpOpen, OpAppend, OpWrite, OpWriteSummed, OpPutPieces, OpTruncate, OpRemoveObject, OpAllocate, OpPunch:
		return true
	}
	return false
}

// Purpose is that of the connection that the op goes over: large bodies cannot
// delay small calls there, and calls that may wait cannot delay those that
// they wait for, nor a node's report that it lives.
func (o Op) Purpose() Purpose {
	switch o {
	case OpRead, OpWrite, OpReadIfPresent, OpReadSummed, OpWriteSummed, OpPutPieces, OpTask, OpTaskPoll, OpTaskCancel, OpStageBoundary, OpStageAbort, OpManifest,
		OpInventory, OpObjects, OpMissing, OpReferenced, OpDropPages, OpStandbyReplicate, OpScan:
		return PurposeBulk
	case OpPrepare, OpCommit, OpAbort, OpOutcome, OpRenameLock, OpAncestor,
		OpShardCreate, OpShardFill, OpShardChange, OpShardReport, OpRevoke, OpReport:
		return PurposePeer
	}
	return PurposeMeta
}
