package stagein

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// memFiles is the files of a dataset as a table has them.
type memFiles struct {
	records []manifest.Record // in the order of the manifest
	byIno   map[metadata.Ino]*manifest.Record
	named   atomic.Int64 // calls of Files
}

// filesOf makes the manifest of what was scanned, and reads it.
func filesOf(records []byte) (*memFiles, error) {
	return filesOfParts([][]byte{records}, nil)
}

func filesOfParts(records [][]byte, sums map[metadata.Ino][16]byte) (*memFiles, error) {
	var b bytes.Buffer
	var parts []*manifest.Reader
	for _, r := range records {
		p := manifest.NewReader(bytes.NewReader(r))
		p.Sums = sums
		parts = append(parts, p)
	}
	if _, err := manifest.Build(manifest.BuildConfig{Dataset: 3, Root: metadata.Attr{Mode: source.TypeDir | 0o755}, Scratch: &manifest.Scratch{}}, parts, &b); err != nil {
		return nil, err
	}
	m := &memFiles{byIno: make(map[metadata.Ino]*manifest.Record)}
	for r := manifest.NewReader(&b); ; {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		m.records = append(m.records, rec)
	}
	for i := range m.records {
		m.byIno[m.records[i].Attr.Ino] = &m.records[i]
	}
	return m, nil
}

func (m *memFiles) Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error {
	m.named.Add(1)
	dirs := map[string]uint32{}
	for _, r := range m.records {
		dir, name := filepath.Split(r.Path)
		dir = strings.TrimSuffix(dir, "/")
		switch r.Attr.Mode & source.TypeMask {
		case source.TypeDir:
			dirs[r.Path] = r.Attr.Ino.Seq()
		case source.TypeRegular:
			if !fn(dir, dirs[dir], name, r.Attr) {
				return nil
			}
		}
	}
	return nil
}

func (m *memFiles) Located(fn func(from manifest.Origin, a metadata.Attr) bool) error {
	for _, r := range m.records {
		if r.From.Known() && !fn(r.From, r.Attr) {
			return nil
		}
	}
	return nil
}

func (m *memFiles) Origin(ino metadata.Ino) (manifest.Origin, metadata.Attr, error) {
	r, ok := m.byIno[ino]
	if !ok {
		return manifest.Origin{}, metadata.Attr{}, syscall.ENOENT
	}
	return r.From, r.Attr, nil
}

func (m *memFiles) Record(ino metadata.Ino) (sum [16]byte, a metadata.Attr, err error) {
	_, a, err = m.Origin(ino)
	if err == nil {
		sum = m.byIno[ino].Sum
	}
	return sum, a, err
}

func (m *memFiles) Chunks(ino metadata.Ino) (manifest.CRCs, error) {
	if _, _, err := m.Origin(ino); err != nil {
		return "", err
	}
	return m.byIno[ino].Chunks, nil
}

func (m *memFiles) Each(fn func(path string, a metadata.Attr) bool) error {
	for _, r := range m.records {
		if r.Attr.Mode&source.TypeMask == source.TypeRegular && !fn(r.Path, r.Attr) {
			return nil
		}
	}
	return nil
}

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// filler is the fill of a scanned source on one node of a job.
func (j *job) filler(m cluster.Map, node metadata.NodeID, s *Scanned, files Files, dir string) (*Fill, error) {
	b, err := json.Marshal(s.Origins)
	if err != nil {
		return nil, err
	}
	cfg := FillConfig{
		Self: node, Files: files, FS: j.fs, Log: quiet(), Workers: 4,
		Watch: func() (cluster.Map, <-chan struct{}) { return m, nil },
		Put: func(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
			return j.target.Put(ctx, node, ino, p, off)
		},
		Journal: filepath.Join(dir, fmt.Sprint("journal-", node)), Digest: "digest", Boot: "boot",
	}
	if err := json.Unmarshal(b, &cfg.Origins); err != nil {
		return nil, err
	}
	if j.camp != nil {
		cfg.Others = j.camp
	}
	f, err := NewFill(cfg)
	if err != nil {
		return nil, err
	}
	if j.lim.piece != 0 {
		f.bufs = newPools(minPieces, j.lim.piece)
	}
	if j.runSize != 0 {
		f.runSize = j.runSize
	}
	if j.legSize != 0 {
		f.legSize = j.legSize
	}
	if j.near != nil {
		f.near = j.near
	}
	if j.camp != nil {
		j.camp.pitch(node, f)
	}
	return f, nil
}

// filled stages what Scan has found, on all nodes at once.
func (j *job) filled(ctx context.Context, m cluster.Map, s *Scanned, records *bytes.Buffer) (map[string]entry, error) {
	files, err := filesOf(records.Bytes())
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fill")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if j.camp != nil {
		j.camp = j.camp.again()
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
	j.named = files.named.Load()
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
		if _, whole := f.Whole(); whole || f.Trouble() != nil {
			cancel()
		}
	})
	if err := f.Trouble(); err != nil {
		return err
	}
	if out := f.bufs.in.Out() + f.bufs.out.Out(); out != 0 {
		return fmt.Errorf("%d buffers were not released", out)
	}
	if _, whole := f.Whole(); !whole {
		return ctx.Err()
	}
	return nil
}
