package jobtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/ingest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// Job stages a source with n nodes in this process.
type Job struct {
	FS      *stageintest.MemFS
	Nodes   int
	Path    string // of the source
	Region  int64
	Stripe  int64
	Lim     Bounds
	Memory  int64
	Target  *stageintest.MemTarget
	Plan    *stagein.Plan
	Scanned *scan.Scanned // nil if the source was read in a single pass
	Sum     stagein.Progress
	Order   func(part int) // called before a share or a fill starts
	Sent    func(part int) // called when a part has passed on its boundary
	Free    func(metadata.NodeID) (int64, bool)
	Opts    stagein.Options
	// Config changes the configuration of a share. After a share has failed, Again reports whether its part, whose
	// records are w, is started again.
	Config  func(part int, cfg *ingest.Config)
	Again   func(part int, w *bytes.Buffer) bool
	Log     *logrus.Entry
	Skips   []stagein.Skip            // entries left out
	Sums    map[metadata.Ino][16]byte // of members read in pieces
	Records [][]byte                  // of the parts
	Swarm   *swarm                    // the nodes read for each other
	RunSize int64
	Workers int           // of a fill; 0: 4
	Found   []source.Item // items in the only index that the scan made
	Discard bool          // keep no data, to measure
	bufs    sync.Map      // of archive.Buffers by *Fill
	named   int64         // number of times that fills listed all names
}

// Bounds make a job meet every kind of boundary with little data; 0: the default if Piece is 0, otherwise the least.
type Bounds struct {
	Piece, Carry int
	Checkpoint   int64
}

const (
	JobUID = 1234
	JobGID = 567
)

// Run stages the source, and returns the tree that the nodes then hold.
func (j *Job) Run(ctx context.Context) (map[string]stageintest.Entry, error) {
	m := stageintest.ClusterMap(j.Nodes)
	if j.Target == nil {
		j.Target = &stageintest.MemTarget{}
	}
	j.Target.Objects, j.Target.Discard = map[stageintest.ObjectKey][]byte{}, j.Discard
	cfg := &scan.Config{
		FS: j.FS, Request: stagein.Request{Source: j.Path, Name: "ds", Options: j.Opts}, Dataset: 3, Map: m,
		UID: JobUID, GID: JobGID, Log: cmp.Or(j.Log, stageintest.QuietLog()), Region: j.Region, Stripe: j.Stripe, Free: j.Free,
	}
	j.Scanned = nil
	var records bytes.Buffer
	switch scanned, err := scan.Run(ctx, cfg, &records); {
	case err != nil:
		return nil, err
	case scanned != nil:
		j.Scanned = scanned
		return j.filled(ctx, m, scanned, &records)
	}
	plan, err := scan.MakePlan(ctx, cfg)
	if err != nil {
		return nil, err
	}
	j.Plan, j.Skips = plan, plan.Skips
	parts, err := j.shares(ctx, m)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		j.Records = append(j.Records, bytes.Clone(p.Bytes()))
	}
	if err := j.build(parts); err != nil || j.Discard {
		return nil, err
	}
	return j.tree(m, parts)
}

// shares runs all shares as a coordinator would, with everything through JSON.
func (j *Job) shares(ctx context.Context, m cluster.Map) ([]*bytes.Buffer, error) {
	seams := make([]chan []byte, len(j.Plan.Parts)+1)
	for i := range seams {
		seams[i] = make(chan []byte, 1)
	}
	parts := make([]*bytes.Buffer, len(j.Plan.Parts))
	skips := make([]bytes.Buffer, len(parts))
	states := make([]stagein.Progress, len(parts))
	pieces := make([][]stagein.Piece, len(parts))
	g, ctx := errgroup.WithContext(ctx)
	for i := range parts {
		parts[i] = &bytes.Buffer{}
		g.Go(func() error {
			if j.Order != nil {
				j.Order(i)
			}
		begin:
			s, pool, err := j.share(m, i, parts[i], &skips[i], seams)
			if err != nil {
				return err
			}
			err = s.Run(ctx)
			if err != nil && j.Again != nil && j.Again(i, parts[i]) {
				parts[i] = &bytes.Buffer{}
				goto begin
			}
			states[i], pieces[i] = s.Progress(), s.Pieces()
			if out := pool.Out(); err == nil && out != 0 {
				return fmt.Errorf("%d buffers were not released", out)
			}
			return err
		})
	}
	err := g.Wait()
	j.Sum = stagein.Sum(states)
	if err == nil {
		j.Sums, err = stagein.JoinPieces(slices.Concat(pieces...))
	}
	for i := range skips {
		for d := json.NewDecoder(&skips[i]); d.More(); {
			var s stagein.Skip
			err = errors.Join(err, d.Decode(&s))
			j.Skips = append(j.Skips, s)
		}
	}
	return parts, err
}

func (j *Job) share(m cluster.Map, i int, w, skips io.Writer, seams []chan []byte) (*ingest.Share, *source.Pool, error) {
	b, err := json.Marshal(j.Plan)
	if err != nil {
		return nil, nil, err
	}
	var plan stagein.Plan
	if err := json.Unmarshal(b, &plan); err != nil {
		return nil, nil, err
	}
	pool := source.NewPool(j.buffers())
	cfg := ingest.Config{
		Plan: &plan, Part: plan.Parts[i], FS: j.FS, Map: m, Target: j.Target, Records: w, Skipped: skips, Workers: 4, Pool: pool, Scratch: &manifest.Scratch{},
		BoundaryIn: func(ctx context.Context) (seam ingest.Boundary, err error) {
			select {
			case b := <-seams[i]:
				return seam, json.Unmarshal(b, &seam)
			case <-ctx.Done():
				return seam, ctx.Err()
			}
		},
		BoundaryOut: func(ctx context.Context, seam ingest.Boundary) error {
			b, err := json.Marshal(seam)
			if err != nil {
				return err
			}
			select {
			case seams[i+1] <- b:
				if j.Sent != nil {
					j.Sent(i)
				}
				return nil
			default:
				return errors.New("two boundaries")
			}
		},
	}
	if j.Lim.Piece != 0 {
		cfg.Limits = ingest.Limits{Carry: max(j.Lim.Carry, 1), Checkpoint: max(j.Lim.Checkpoint, 1)}
	}
	if j.Config != nil {
		j.Config(i, &cfg)
	}
	s, err := ingest.New(cfg)
	return s, pool, err
}

// buffers returns the number of buffers of a node, and their size.
func (j *Job) buffers() (n, size int) {
	size = cmp.Or(j.Lim.Piece, wire.MaxData)
	return max(int(cmp.Or(j.Memory, stagein.DefaultBuffers))/size, archive.MinPieces), size
}

// build builds the manifest, and checks that it agrees with the records.
func (j *Job) build(parts []*bytes.Buffer) error {
	readers := make([]*manifest.Reader, len(parts))
	for i, p := range parts {
		readers[i] = manifest.NewReader(bytes.NewReader(p.Bytes()))
		readers[i].Sums = j.Sums
	}
	_, err := manifest.Build(manifest.BuildConfig{Dataset: 3, Root: metadata.Attr{Mode: source.TypeDir | 0o755}, Scratch: &manifest.Scratch{}}, readers, io.Discard)
	return err
}

// tree joins the records with the bytes in the objects.
func (j *Job) tree(m cluster.Map, parts []*bytes.Buffer) (map[string]stageintest.Entry, error) {
	tree := map[string]stageintest.Entry{}
	used := map[stageintest.ObjectKey]bool{}
	scanned := j.scannedOwner(m, parts)
	for i, p := range parts {
		r := manifest.NewReader(p)
		r.Sums = j.Sums
		for {
			rec, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				return nil, err
			}
			if old, ok := tree[rec.Path]; ok && old.Mode&source.TypeMask != source.TypeDir {
				return nil, fmt.Errorf("%q twice", rec.Path)
			}
			owner := m.FileOwner(rec.Path)
			switch {
			case scanned != nil:
				owner = scanned(&rec)
			case j.Plan.Kind == source.Dir && j.Plan.Parts[i].Try == 0:
				owner = j.Plan.Parts[i].Node
			}
			if tree[rec.Path], err = j.entry(m, rec, owner, used); err != nil {
				return nil, err
			}
		}
	}
	for k := range j.Target.Objects {
		if !used[k] {
			return nil, fmt.Errorf("object %v on %d belongs to nothing", k.Ino, k.Node)
		}
	}
	return tree, nil
}

// scannedOwner returns a function that returns the owners of a scan's files, to be called for each file in order; nil
// for a single pass.
func (j *Job) scannedOwner(m cluster.Map, parts []*bytes.Buffer) func(rec *manifest.Record) metadata.NodeID {
	if j.Scanned == nil {
		return nil
	}
	var files []manifest.Record
	total := int64(0)
	for _, p := range parts {
		for r := manifest.NewReader(bytes.NewReader(p.Bytes())); ; {
			rec, err := r.Next()
			if err != nil {
				break // tree reports it
			}
			if HasData(&rec) && rec.Attr.Size <= j.Stripe {
				files, total = append(files, rec), total+rec.Attr.Size
			}
		}
	}
	owner, b := map[string]metadata.NodeID{}, m.Balance(total)
	for i := range files {
		owner[files[i].Path] = b.Owner(files[i].Path, files[i].Attr.Size)
	}
	return func(rec *manifest.Record) metadata.NodeID {
		if id, ok := owner[rec.Path]; ok {
			return id
		}
		return m.FileOwner(rec.Path)
	}
}

func (j *Job) entry(m cluster.Map, rec manifest.Record, owner metadata.NodeID, used map[stageintest.ObjectKey]bool) (stageintest.Entry, error) {
	a := rec.Attr
	e := stageintest.Entry{Mode: a.Mode, Mtime: a.Mtime, Target: rec.Target, Link: rec.Hardlink, Sum: rec.Sum}
	if a.UID != JobUID || a.GID != JobGID {
		return e, fmt.Errorf("%q: owner %d:%d", rec.Path, a.UID, a.GID)
	}
	if rec.Hardlink != "" || a.Mode&source.TypeMask != source.TypeRegular {
		return e, nil
	}
	e.Size = a.Size
	if want := a.Size > j.Stripe; want != (a.Layout.Kind == metadata.Striped) {
		return e, fmt.Errorf("%q of %d bytes has layout %+v", rec.Path, a.Size, a.Layout)
	}
	if a.Layout.Kind == metadata.Local && a.Layout.Node != owner {
		return e, fmt.Errorf("%q is on %d, its owner is %d", rec.Path, a.Layout.Node, owner)
	}
	data := make([]byte, 0, a.Size)
	for _, sp := range datapath.Spans(a.Layout.Chunk(), m.Order(a.Ino, a.Layout), 0, a.Size) {
		k := stageintest.ObjectKey{Node: sp.Node, Ino: a.Ino}
		used[k] = true
		b := j.Target.Objects[k]
		if int64(len(b)) < sp.Off+sp.Len {
			return e, fmt.Errorf("%q: object on %d has %d bytes, want %d", rec.Path, sp.Node, len(b), sp.Off+sp.Len)
		}
		data = append(data, b[sp.Off:sp.Off+sp.Len]...)
	}
	e.Data = string(data)
	return e, sumsUp(&rec, e.Data)
}

// sumsUp compares the bytes of a file with its checksum.
func sumsUp(rec *manifest.Record, data string) error {
	c := stagein.NewChecker(rec.Sum, rec.Attr.Size)
	_, _ = io.WriteString(c, data) // cannot fail
	if err := c.Check(); err != nil {
		return fmt.Errorf("%q: sum %x is not of its bytes: %v", rec.Path, rec.Sum, err)
	}
	return nil
}

// TarJob returns a job of an archive with small limits, so that small archives meet every kind of boundary.
func TarJob(archive []byte, nodes int) *Job {
	j := &Job{FS: stageintest.NewFS(), Nodes: nodes, Path: "/src/a.tar", Region: 1024, Stripe: 1 << 20}
	j.Lim = Bounds{Piece: 2048, Carry: 1024}
	j.Memory = 64 << 10
	j.FS.Add(j.Path, source.TypeRegular|0o644, archive)
	return j
}

// HasData reports whether a record is of a file with data.
func HasData(rec *manifest.Record) bool {
	return rec.Hardlink == "" && rec.Attr.Mode&source.TypeMask == source.TypeRegular && rec.Attr.Size > 0
}
