package jobtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// Filler returns the fill of a scanned source on one node of a job.
func (j *Job) Filler(m cluster.Map, node metadata.NodeID, s *scan.Scanned, files stagein.Files, dir string) (*fill.Fill, error) {
	b, err := json.Marshal(s.Origins)
	if err != nil {
		return nil, err
	}
	cfg := fill.Config{
		Self: node, Files: files, FS: j.FS, Log: stageintest.QuietLog(), Workers: cmp.Or(j.Workers, 4),
		Watch: func() (cluster.Map, <-chan struct{}) { return m, nil },
		Put: func(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
			return j.Target.Put(ctx, node, ino, p, off)
		},
		Journal: filepath.Join(dir, fmt.Sprint("journal-", node)), Digest: "digest", Boot: "boot",
	}
	if err := json.Unmarshal(b, &cfg.Origins); err != nil {
		return nil, err
	}
	if j.Swarm != nil {
		cfg.Peers = j.Swarm
	}
	cfg.Buffers = archive.NewBuffers(j.buffers())
	if j.Lim.Piece != 0 {
		cfg.Buffers = archive.NewBuffers(archive.MinPieces, j.Lim.Piece)
	}
	cfg.RunSize = j.RunSize
	f, err := fill.New(cfg)
	if err != nil {
		return nil, err
	}
	j.bufs.Store(f, cfg.Buffers)
	if j.Swarm != nil {
		j.Swarm.join(node, f)
	}
	return f, nil
}

// filled runs the fills of the scanned source on all nodes concurrently.
func (j *Job) filled(ctx context.Context, m cluster.Map, s *scan.Scanned, records *bytes.Buffer) (map[string]stageintest.Entry, error) {
	files, err := stageintest.FilesOf(records.Bytes())
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fill")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if j.Swarm != nil {
		j.Swarm = j.Swarm.again()
	}
	states := make([]stagein.Progress, j.Nodes)
	var g errgroup.Group
	for i := range states {
		g.Go(func() error {
			if j.Order != nil {
				j.Order(i)
			}
			f, err := j.Filler(m, metadata.NodeID(i), s, files, dir)
			if err != nil {
				return err
			}
			err = j.RunFill(ctx, f)
			states[i] = f.Progress()
			return errors.Join(err, f.Close())
		})
	}
	err = g.Wait()
	j.named = files.Walks.Load()
	if err != nil {
		return nil, err
	}
	j.Sum = stagein.Sum(states)
	j.Sum.SourceBytes += s.Read
	return j.tree(m, []*bytes.Buffer{records})
}

// RunFill runs a fill until it is complete or fails.
func (j *Job) RunFill(ctx context.Context, f *fill.Fill) error {
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
	bufs, _ := j.bufs.Load(f)
	if b, ok := bufs.(archive.Buffers); ok && b.In.Out()+b.Out.Out() != 0 {
		return fmt.Errorf("%d buffers were not released", b.In.Out()+b.Out.Out())
	}
	if _, whole := f.Done(); !whole {
		return ctx.Err()
	}
	return nil
}
