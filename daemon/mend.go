package daemon

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
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// mendReq has a node fetch again what it has of files that are not what they
// were.
type mendReq struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Inos    []metadata.Ino     `json:"inos"`
}

// mendResult says for which it failed, and why.
type mendResult struct {
	Failed map[metadata.Ino]string `json:"failed,omitempty"`
}

// mend has the nodes fetch again what was found to be bad, and looks at it again.
func (d *Daemon) mend(ctx context.Context, ds cluster.Dataset, x dataset, res *VerifyResult) error {
	var inos []metadata.Ino
	for _, f := range res.BadFiles {
		if f.Ino != 0 && !f.Source {
			inos = append(inos, f.Ino)
		}
	}
	if len(inos) == 0 {
		return nil
	}
	failed, err := d.mendAll(ctx, ds.ID, inos)
	if err != nil {
		return err
	}
	d.dropPagesEverywhere(ctx, inos)
	again, err := d.verifyAll(ctx, x, verifyReq{Dataset: ds.ID, Only: inos})
	if err != nil {
		return err
	}
	res.mended(again, failed)
	return nil
}

// mended takes note of what was found when the bad files had been fetched again,
// or could not be.
func (r *VerifyResult) mended(again VerifyResult, failed map[metadata.Ino]string) {
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
			f.Mended = true
			r.Mended++
			r.Bad--
		}
	}
}

// mendAll has every node fetch again what it has of inos.
func (d *Daemon) mendAll(ctx context.Context, ds metadata.DatasetID, inos []metadata.Ino) (map[metadata.Ino]string, error) {
	failed := make(map[metadata.Ino]string)
	var mu sync.Mutex
	q, err := tasks.NewRequest(fmt.Sprintf("repair-%d-%d", d.job.Self, now()), kindRepair, mendReq{ds, inos})
	if err != nil {
		return nil, err
	}
	err = d.tasks.RunAll(ctx, q, func(_ metadata.NodeID, s tasks.State) {
		var r mendResult
		if ok, err := s.Decode(&r); ok && err == nil {
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(failed, r.Failed)
		}
	})
	return failed, err
}

func (d *Daemon) prepareRepair(_ metadata.NodeID, q *mendReq) (tasks.Task, error) {
	var result atomic.Pointer[mendResult]
	return tasks.Task{
		Run: func(ctx context.Context) error {
			r, err := d.mendShare(ctx, *q)
			result.Store(r)
			return err
		},
		Detail: func(bool) any { return result.Load() },
	}, nil
}

func (d *Daemon) mendShare(ctx context.Context, q mendReq) (*mendResult, error) {
	if slices.ContainsFunc(q.Inos, func(i metadata.Ino) bool { return !i.Sealed() || i.Dataset() != q.Dataset }) {
		return nil, fmt.Errorf("mend: a file of another dataset than %d: %w", q.Dataset, syscall.EINVAL)
	}
	f, _ := d.fill.get(q.Dataset)
	if f == nil {
		return nil, fmt.Errorf("mend: where dataset %d came from is not known here: %w", q.Dataset, syscall.ENOENT)
	}
	failed, err := f.Again(ctx, q.Inos)
	r := &mendResult{Failed: make(map[metadata.Ino]string, len(failed))}
	for ino, e := range failed {
		r.Failed[ino] = node.Clip(node.ErrorText(e))
	}
	return r, err
}

// DropPagesFunc has the kernel of this node forget what it has read of files of
// datasets. It may wait for reads of them.
type DropPagesFunc func([]metadata.Ino)

// SetDropPages gives the daemon its way to this node's mount.
func (d *Daemon) SetDropPages(f DropPagesFunc) { d.pages.Store(&f) }

// dropPagesTime bounds how long a node may take to drop pages.
const dropPagesTime = 30 * time.Second

type dropPagesReq struct {
	Inos []metadata.Ino `json:"inos"`
}

// dropPagesEverywhere is for what was bad, and may have been read so.
func (d *Daemon) dropPagesEverywhere(ctx context.Context, inos []metadata.Ino) {
	var g errgroup.Group
	for _, id := range node.Participants(d.View().Map) {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, dropPagesTime)
			defer cancel()
			if err := d.Call(ctx, id, wire.OpDropPages, dropPagesReq{inos}, nil); err != nil {
				d.log.WithError(err).WithField("node", d.job.Hosts[id]).Warn("what was read of files that were bad is kept there")
			}
			return nil
		})
	}
	_ = g.Wait() // none returns an error
}

func (d *Daemon) onDropPages(_ context.Context, _ metadata.NodeID, q *dropPagesReq) (struct{}, error) {
	if f := d.pages.Load(); f != nil {
		(*f)(q.Inos)
	}
	return struct{}{}, nil
}
