package stagein

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// filler is the fill of a scanned source on one node of a job.
func (j *job) filler(m cluster.Map, node metadata.NodeID, s *Scanned, files Files, dir string) (*Fill, error) {
	b, err := json.Marshal(s.Origins)
	if err != nil {
		return nil, err
	}
	cfg := FillConfig{
		Self: node, Files: files, FS: j.fs, Log: stageintest.QuietLog(), Workers: 4,
		Watch: func() (cluster.Map, <-chan struct{}) { return m, nil },
		Put: func(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
			return j.target.Put(ctx, node, ino, p, off)
		},
		Journal: filepath.Join(dir, fmt.Sprint("journal-", node)), Digest: "digest", Boot: "boot",
	}
	if err := json.Unmarshal(b, &cfg.Origins); err != nil {
		return nil, err
	}
	if j.swarm != nil {
		cfg.Peers = j.swarm
	}
	f, err := NewFill(cfg)
	if err != nil {
		return nil, err
	}
	if j.lim.piece != 0 {
		f.bufs = archive.NewBuffers(archive.MinPieces, j.lim.piece)
	}
	if j.runSize != 0 {
		f.runSize = j.runSize
	}
	if j.rangeSize != 0 {
		f.rangeSize = j.rangeSize
	}
	if j.swarm != nil {
		j.swarm.join(node, f)
	}
	return f, nil
}

// filled stages what Scan has found, on all nodes at once.
func (j *job) filled(ctx context.Context, m cluster.Map, s *Scanned, records *bytes.Buffer) (map[string]stageintest.Entry, error) {
	files, err := stageintest.FilesOf(records.Bytes())
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fill")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if j.swarm != nil {
		j.swarm = j.swarm.again()
	}
	states := make([]Progress, j.nodes)
	var g errgroup.Group
	for i := range states {
		g.Go(func() error {
			if j.order != nil {
				j.order(i)
			}
			f, err := j.filler(m, metadata.NodeID(i), s, files, dir)
			if err != nil {
				return err
			}
			err = j.runFill(ctx, f)
			states[i] = f.Progress()
			return errors.Join(err, f.Close())
		})
	}
	err = g.Wait()
	j.named = files.Walks.Load()
	if err != nil {
		return nil, err
	}
	j.sum = Sum(states)
	j.sum.SourceBytes += s.Read
	return j.tree(m, []*bytes.Buffer{records})
}

// runFill runs a fill until it is whole, or has a trouble.
func (j *job) runFill(ctx context.Context, f *Fill) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.Run(ctx, func() {
		if _, whole := f.Done(); whole || f.Err() != nil {
			cancel()
		}
	})
	if err := f.Err(); err != nil {
		return err
	}
	if n, why := f.Missing(); n > 0 {
		return fmt.Errorf("%d files are missing: %w", n, why)
	}
	if out := f.bufs.In.Out() + f.bufs.Out.Out(); out != 0 {
		return fmt.Errorf("%d buffers were not released", out)
	}
	if _, whole := f.Done(); !whole {
		return ctx.Err()
	}
	return nil
}
