package rebuild

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/copies"
)

// intake is the state of a copy that is being made on this node.
type intake struct {
	mu            sync.Mutex // held while a range is stored
	copies.Intake            // guarded by mu
	over          bool       // guarded by mu; removed from Guard.intakes
}

// lockIntake returns the intake of an object, locked.
func (g *Guard) lockIntake(object metadata.Ino) *intake {
	for {
		g.mu.Lock()
		i := g.intakes[object]
		if i == nil {
			i = &intake{}
			g.intakes[object] = i
		}
		g.mu.Unlock()
		if i.mu.Lock(); !i.over {
			return i
		}
		i.mu.Unlock()
	}
}

// forget drops the state of the copies that count in m. It waits for ranges that are being stored.
func (g *Guard) forget(m cluster.Map) {
	g.mu.Lock()
	all := maps.Clone(g.intakes)
	g.mu.Unlock()
	for ino, i := range all {
		g.forgetOne(m, ino, i)
	}
}

func (g *Guard) forgetOne(m cluster.Map, ino metadata.Ino, i *intake) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over || !i.Over(m) {
		return
	}
	i.over = true
	g.mu.Lock()
	delete(g.intakes, ino)
	g.mu.Unlock()
}

// Remove calls remove to remove an object, and refuses ranges of its copy that are still in transit, since they would
// create the object again.
func (g *Guard) Remove(ctx context.Context, object metadata.Ino, remove func(context.Context, metadata.Ino) error) error {
	g.mu.Lock()
	i := g.intakes[object]
	g.mu.Unlock()
	if i != nil {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.End()
	}
	return remove(ctx, object)
}

// Handlers returns the handlers that make copies in this node's store data. They leave spare of its capacity free.
func (g *Guard) Handlers(data datapath.Store, spare func(capacity int64) int64) node.Handlers {
	return node.Handlers{wire.OpCopyRange: g.Writes(func(ctx context.Context, r *rpc.Request, _ *rpc.Response) error {
		var q wire.CopyRangeReq
		if err := wire.Parse(r.Body, &q); err != nil {
			return err
		}
		if !q.Ino.Copied() {
			return fmt.Errorf("inode %v: a range of a copy: %w", q.Ino, syscall.EINVAL)
		}
		i := g.lockIntake(q.Ino)
		defer i.mu.Unlock()
		if !copies.Wanted(q.By, g.view().Map) || !i.Take(copies.Range{By: q.By, Run: q.Run, Try: q.Try, Seq: q.Seq}) {
			return fmt.Errorf("inode %v: a range of a copy that was given up: %w", q.Ino, syscall.ESTALE)
		}
		if q.Seq == 0 {
			if err := data.Remove(ctx, q.Ino); err != nil {
				return err
			}
		}
		s, err := data.Space(ctx)
		if err == nil && s.Free-spare(s.Capacity) < max(q.Expected, int64(len(r.Data))) {
			err = fmt.Errorf("inode %v: the rest of the node's space is left to writes: %w", q.Ino, syscall.ENOSPC)
		}
		if err != nil {
			return err
		}
		return data.WriteAt(ctx, q.Ino, r.Data, q.Off)
	})}
}
