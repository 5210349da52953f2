package dataset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// repairRequest asks a node to refetch its bytes of bad files.
type repairRequest struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Inos    []metadata.Ino     `json:"inos"`
}

// repairResult lists the files that could not be refetched, with the reasons.
type repairResult struct {
	Failed map[metadata.Ino]string `json:"failed,omitempty"`
}

// repair has all nodes refetch the bad files of res, and verifies these files again.
func (v *Verifier) repair(ctx context.Context, x table, q verifyRequest, res *VerifyResult) error {
	var inos []metadata.Ino
	for _, f := range res.BadFiles {
		if f.Ino != 0 && !f.Source {
			inos = append(inos, f.Ino)
		}
	}
	if len(inos) == 0 {
		return nil
	}
	failed, err := v.refetchAll(ctx, q.Dataset, inos)
	v.DropPages(context.WithoutCancel(ctx), inos) // some may have been refetched even on an error
	if err != nil {
		return err
	}
	again, err := v.all(ctx, x, verifyRequest{Dataset: q.Dataset, Only: inos})
	if err != nil {
		return err
	}
	res.repaired(again, failed)
	return nil
}

// repaired updates r after the bad files were refetched. failed has the files that could not be refetched.
func (r *VerifyResult) repaired(again VerifyResult, failed map[metadata.Ino]string) {
	for i := range r.BadFiles {
		f := &r.BadFiles[i]
		still := slices.ContainsFunc(again.BadFiles, func(b BadFile) bool { return b.Ino == f.Ino })
		switch why := failed[f.Ino]; {
		case f.Ino == 0 || f.Source:
		case why != "":
			f.Error += "; it cannot be fetched again: " + why
		case still:
			f.Error += "; it was fetched again, and is still bad"
		default:
			f.Repaired = true
			r.Repaired++
			r.Bad--
		}
	}
}

// refetchAll has every node refetch its bytes of inos.
func (v *Verifier) refetchAll(ctx context.Context, id metadata.DatasetID, inos []metadata.Ino) (map[metadata.Ino]string, error) {
	var mu sync.Mutex
	failed := make(map[metadata.Ino]string) // guarded by mu
	q, err := tasks.NewRequest(v.taskID(kindRepair), kindRepair, repairRequest{id, inos})
	if err != nil {
		return nil, err
	}
	err = v.tasks.RunAll(ctx, q, func(_ metadata.NodeID, s tasks.State) {
		var r repairResult
		if ok, err := s.Decode(&r); ok && err == nil {
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(failed, r.Failed)
		}
	})
	return failed, err
}

func (v *Verifier) prepareRepair(_ metadata.NodeID, q *repairRequest) (tasks.Task, error) {
	if slices.ContainsFunc(q.Inos, func(i metadata.Ino) bool { return !i.Sealed() || i.Dataset() != q.Dataset }) {
		return tasks.Task{}, fmt.Errorf("repair: a file of another dataset than %d: %w", q.Dataset, syscall.EINVAL)
	}
	var result atomic.Pointer[repairResult]
	return tasks.Task{
		Run: func(ctx context.Context) error {
			r, err := v.refetch(ctx, q)
			result.Store(r)
			return err
		},
		Detail: func(bool) any { return result.Load() },
	}, nil
}

// refetch refetches this node's bytes of files.
func (v *Verifier) refetch(ctx context.Context, q *repairRequest) (*repairResult, error) {
	x, _ := v.fills.get(q.Dataset)
	if x == nil {
		return nil, fmt.Errorf("repair: the source of dataset %d is not known here: %w", q.Dataset, syscall.ENOENT)
	}
	for _, ino := range q.Inos {
		for _, p := range v.fills.replicas.Pieces(ino) {
			if err := v.fills.replicas.Verify(ctx, p); ctx.Err() != nil {
				return nil, err // Verify removes a bad replica
			}
		}
	}
	failed, err := x.Refetch(ctx, q.Inos)
	if err != nil { // the caller, which would drop the pages, may be down
		v.n.Spawn(func(ctx context.Context) { _, _ = v.onDropPages(ctx, v.n.Self(), &dropPagesRequest{q.Inos}) }) // never fails
	}
	r := &repairResult{Failed: make(map[metadata.Ino]string, len(failed))}
	for ino, e := range failed {
		r.Failed[ino] = node.Clip(node.ErrorText(e))
	}
	return r, err
}

// dropPagesTime bounds how long a node may take to drop pages.
const dropPagesTime = 30 * time.Second

// DropPagesFunc has the kernel of this node drop the cached pages of files of datasets. It may wait for reads of them.
type DropPagesFunc func([]metadata.Ino)

// SetDropPages sets the function that drops pages of this node's mount.
func (v *Verifier) SetDropPages(f DropPagesFunc) { v.drop.Store(&f) }

type dropPagesRequest struct {
	Inos []metadata.Ino `json:"inos"`
}

// Handlers returns the handlers for calls from other nodes.
func (v *Verifier) Handlers() node.Handlers {
	return node.Handlers{wire.OpDropPages: node.HandleJSON(v.onDropPages)}
}

// DropPages has the kernels of all nodes drop the cached pages of files that were bad.
func (v *Verifier) DropPages(ctx context.Context, inos []metadata.Ino) {
	var g errgroup.Group
	for _, id := range node.Participants(v.n.View().Map) {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, dropPagesTime)
			defer cancel()
			if err := v.n.Call(ctx, id, wire.OpDropPages, dropPagesRequest{inos}, nil); err != nil {
				v.n.Log().WithError(err).WithField("node", v.hosts[id]).
					Warn("page cache of repaired files not dropped: readers there may see bad bytes until the files are closed")
			}
			return nil
		})
	}
	_ = g.Wait() // no function fails
}

func (v *Verifier) onDropPages(_ context.Context, _ metadata.NodeID, q *dropPagesRequest) (struct{}, error) {
	if f := v.drop.Load(); f != nil {
		(*f)(q.Inos)
	}
	return struct{}{}, nil
}
