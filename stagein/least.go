package stagein

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/bivouacfs/bivouac/stagein/source"
)

const (
	// likely is how many times its size a compressed tar is thought to unpack to at
	// the most: where there is room for that, nobody looks.
	likely = 64
	// headers is what part of a tar is not taken for data: what stands before members, and
	// those that have none. A file's last page is more than its padding and its header.
	headers = 16
)

// roomFor refuses archives for which the nodes have no room, whatever is in them, by
// a few small reads at the ends of those that are compressed. Where only some members
// are wanted, or what is damaged is left out, the size of an archive says nothing.
func (cfg *PlanConfig) roomFor(ctx context.Context, p *Plan, archives []Archive) error {
	if cfg.Request.selects() || cfg.Request.OnError != OnErrorFail {
		return nil
	}
	if !cfg.tight(p.Size * likely) {
		return nil
	}
	all, err := cfg.detectAll(ctx, archives)
	if err != nil {
		return err
	}
	var sum, read atomic.Int64
	err = each(ctx, all, func(_ context.Context, a *archiveScan) error {
		n, err := cfg.least(a, &read)
		sum.Add(n)
		return err
	})
	if err != nil {
		return err
	}
	for i := range all {
		if cfg.found == nil {
			p.Read += all[i].read // who stages it reads its head again
		}
	}
	p.Least = sum.Load()
	p.Read += read.Load()
	return cfg.room(p, evenly(p.Least-p.Least/headers, cfg.Map.Up()))
}

// least is what an archive unpacks to at the least.
func (cfg *PlanConfig) least(a *archiveScan, read *atomic.Int64) (int64, error) {
	if !a.found.Kind.Packed() {
		return a.Size, nil
	}
	f, err := cfg.FS.Open(a.found.Path)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", a.Path, err)
	}
	defer f.Close() // read only
	n, err := source.Least(counted{f, read}, a.found.Kind, a.Size, a.found.Head)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", a.Path, err)
	}
	return n, nil
}
