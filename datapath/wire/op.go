package wire

import (
	"fmt"
	"strconv"
)

// Op is what a frame asks for.
type Op uint16

// The ops of a node's namespace (metadata.NodeStore).
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
	OpNewDir   Op = 14
	OpDropDir  Op = 15
	OpEnter    Op = 16
	OpRemove   Op = 17
	OpRelink   Op = 18
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

// FirstControl is the first op whose body is JSON.
const FirstControl Op = 64

// The control ops.
const (
	// OpReport is a node's heartbeat to the control group; the answer has the View.
	OpReport Op = 64
	// OpPropose forwards a registry command to the leader.
	OpPropose Op = 65
	// OpStage makes a node run a share; from the coordinator.
	OpStage Op = 66
	// OpStagePoll asks a node how its share fares.
	OpStagePoll Op = 67
	// OpStagePart reads a share's records.
	OpStagePart Op = 68
	// OpStageSeam hands over the state at the end of a region.
	OpStageSeam Op = 69
	// OpManifest reads a piece of a manifest.
	OpManifest Op = 70
	// OpStageIn asks the coordinator to stage a source in.
	OpStageIn Op = 71
	// OpStageOut asks for a copy to the source's side.
	OpStageOut Op = 72
	// OpStatus asks a node for its status.
	OpStatus Op = 73
	// OpStageAbort ends a share early.
	OpStageAbort Op = 74
)

// MaxOp is greater than every op, so that a table can be indexed by Op.
const MaxOp Op = 75

var opNames = [MaxOp]string{
	OpLookup: "lookup", OpCreate: "create", OpUnlink: "unlink", OpRename: "rename", OpReadDir: "readdir",
	OpGetattr: "getattr", OpSetattr: "setattr", OpReadlink: "readlink", OpReap: "reap", OpMkdir: "mkdir",
	OpRmdir: "rmdir", OpLink: "link", OpNewDir: "newdir", OpDropDir: "dropdir", OpEnter: "enter",
	OpRemove: "remove", OpRelink: "relink",
	OpRead: "read", OpWrite: "write", OpSync: "sync", OpTruncate: "truncate", OpRemoveObject: "remove-object",
	OpSpace:  "space",
	OpReport: "report", OpPropose: "propose", OpStage: "stage", OpStagePoll: "stage-poll",
	OpStagePart: "stage-part", OpStageSeam: "stage-seam", OpManifest: "manifest", OpStageIn: "stage-in",
	OpStageOut: "stage-out", OpStatus: "status", OpStageAbort: "stage-abort",
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

// Bulk reports whether the op goes over a connection for bulk data, so that it
// cannot delay a small call.
func (o Op) Bulk() bool {
	switch o {
	case OpRead, OpWrite, OpStage, OpStagePoll, OpStagePart, OpStageSeam, OpStageIn, OpStageOut, OpStageAbort, OpManifest:
		return true
	}
	return false
}
