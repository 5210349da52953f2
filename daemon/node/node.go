package node

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// Registry is the state agreed on by the job, as far as this node has received it.
type Registry interface {
	// View returns the newest view of this node. The caller must not change it.
	View() cluster.View
	// Watch returns the view and a channel that is closed when it changes.
	Watch() (cluster.View, <-chan struct{})
	// Until waits for a view for which ok returns true. Its error says that ctx has ended or that the daemon stops.
	Until(ctx context.Context, ok func(cluster.View) bool) error
	// Refresh waits until this node knows everything that the leader knew at the time of the call, such as a dataset
	// that another node registered just before.
	Refresh(ctx context.Context) error
	// Propose has the control group agree on c, wherever its leader is, and returns a view that includes c.
	Propose(ctx context.Context, c raftstore.Command) (cluster.View, error)
}

// Caller calls the nodes of the job.
type Caller interface {
	// Self returns this node.
	Self() metadata.NodeID
	// To returns the RPC connection to another node.
	To(id metadata.NodeID) rpc.Caller
	// Call makes one JSON call to a node. A call to this node runs the handler directly. A nil reply is not decoded.
	Call(ctx context.Context, id metadata.NodeID, op wire.Op, q, reply any) error
	// Insist repeats fn, a call to node id, while retry accepts its error and the map says that the node serves. It
	// gives up after patience, which starts again when a new leader of the control group is elected.
	Insist(ctx context.Context, id metadata.NodeID, patience time.Duration, retry func(error) bool, fn func() error) error
}

// Process is the process of the daemon.
type Process interface {
	// Spawn runs f in a goroutine. The goroutine's context ends when the daemon stops, and the daemon waits for the
	// goroutine.
	Spawn(f func(ctx context.Context))
	// Nudge sends the next report to the leader at once.
	Nudge()
	// Log returns the daemon's log.
	Log() *logrus.Entry
}

// Node combines the three interfaces.
type Node interface {
	Registry
	Caller
	Process
}

// ErrNotLeader is the answer to a proposal from a node that does not lead the control group.
var ErrNotLeader error = syscall.EREMCHG

// Unreachable reports whether err says that a node could not be reached or did not answer, so that the caller may
// repeat the call or call another node.
func Unreachable(err error) bool { return errors.Is(err, ErrNotLeader) || rpc.Unanswered(err) }

// Serving reports whether n takes part in the job's work: it is Up or Leaving.
func Serving(n cluster.Node) bool { return n.Serves() }

// Participants returns the nodes of m that serve.
func Participants(m cluster.Map) []metadata.NodeID {
	var ids []metadata.NodeID
	for _, n := range m.Nodes {
		if Serving(n) {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// Pause waits for d. It returns the error of ctx if ctx ends first.
func Pause(ctx context.Context, d time.Duration) error {
	if !retry.Pause(ctx, d) {
		return ctx.Err()
	}
	return nil
}

// Follow calls do with the view, and again whenever the view changes, until ctx ends. While do reports that work is
// left, Follow calls it again after a pause, which doubles from first up to last.
func Follow(ctx context.Context, r Registry, first, last time.Duration, do func(cluster.View) (done bool)) {
	pause := first
	for {
		v, changed := r.Watch()
		var retry <-chan time.Time
		if do(v) {
			pause = first
		} else {
			retry = time.After(pause)
			pause = min(2*pause, last)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retry:
		}
	}
}
