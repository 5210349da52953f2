package stagein

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
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// job stages a source with n nodes, all in this process.
type job struct {
	fs      *stageintest.MemFS
	nodes   int
	path    string // of the source
	region  int64
	stripe  int64
	lim     limits
	memory  int64
	target  *stageintest.MemTarget
	plan    *Plan
	scanned *Scanned // nil if it was read to be known
	sum     Progress
	order   func(part int) // called before a share starts, or a fill
	sent    func(part int) // called when a part has given out its boundary
	free    func(metadata.NodeID) (int64, bool)
	opts    Options
	// config changes what a share is made of; again is asked, when one has failed, whether
	// its part is begun again. Its records are w.
	config    func(part int, cfg *ShareConfig)
	again     func(part int, w *bytes.Buffer) bool
	log       *logrus.Entry
	skips     []Skip                    // what was left out
	sums      map[metadata.Ino][16]byte // of members that were read in pieces
	records   [][]byte                  // of the parts
	swarm     *swarm                    // the nodes read for each other
	runSize   int64
	rangeSize int64
	found     []source.Item // by the scan, of the only index that it made
	// discard keeps nothing, to measure.
	discard bool
	mu      sync.Mutex
	named   int64 // how often fills looked at all names
}

const (
	jobUID = 1234
	jobGID = 567
)

func (j *job) run(ctx context.Context) (map[string]stageintest.Entry, error) {
	m := stageintest.ClusterMap(j.nodes)
	if j.target == nil {
		j.target = &stageintest.MemTarget{}
	}
	j.target.Objects, j.target.Discard = map[stageintest.ObjectKey][]byte{}, j.discard
	cfg := &PlanConfig{
		FS: j.fs, Request: Request{Source: j.path, Name: "ds", Options: j.opts}, Dataset: 3, Map: m,
		UID: jobUID, GID: jobGID, Log: j.log, Region: j.region, Stripe: j.stripe, Free: j.free,
	}
	j.scanned = nil
	var records bytes.Buffer
	switch scanned, err := Scan(ctx, cfg, &records); {
	case err != nil:
		return nil, err
	case scanned != nil:
		j.scanned = scanned
		return j.filled(ctx, m, scanned, &records)
	}
	plan, err := MakePlan(ctx, cfg)
	if err != nil {
		return nil, err
	}
	j.plan, j.skips = plan, plan.Skips
	parts, err := j.shares(ctx, m)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		j.records = append(j.records, bytes.Clone(p.Bytes()))
	}
	if err := j.build(parts); err != nil || j.discard {
		return nil, err
	}
	return j.tree(m, parts)
}

// shares runs them all as a coordinator would, with everything through JSON.
func (j *job) shares(ctx context.Context, m cluster.Map) ([]*bytes.Buffer, error) {
	seams := make([]chan []byte, len(j.plan.Parts)+1)
	for i := range seams {
		seams[i] = make(chan []byte, 1)
	}
	parts := make([]*bytes.Buffer, len(j.plan.Parts))
	skips := make([]bytes.Buffer, len(parts))
	states := make([]Progress, len(parts))
	pieces := make([][]Piece, len(parts))
	g, ctx := errgroup.WithContext(ctx)
	for i := range parts {
		parts[i] = &bytes.Buffer{}
		g.Go(func() error {
			if j.order != nil {
				j.order(i)
			}
		begin:
			s, err := j.share(m, i, parts[i], &skips[i], seams)
			if err != nil {
				return err
			}
			err = s.Run(ctx)
			if err != nil && j.again != nil && j.again(i, parts[i]) {
				parts[i] = &bytes.Buffer{}
				goto begin
			}
			states[i], pieces[i] = s.Progress(), s.Pieces()
			if out := s.pool.Out(); err == nil && out != 0 {
				return fmt.Errorf("%d buffers were not released", out)
			}
			return err
		})
	}
	err := g.Wait()
	j.sum = Sum(states)
	if err == nil {
		j.sums, err = JoinPieces(slices.Concat(pieces...))
	}
	for i := range skips {
		for d := json.NewDecoder(&skips[i]); d.More(); {
			var s Skip
			err = errors.Join(err, d.Decode(&s))
			j.skips = append(j.skips, s)
		}
	}
	return parts, err
}

func (j *job) share(m cluster.Map, i int, w, skips io.Writer, seams []chan []byte) (*Share, error) {
	b, err := json.Marshal(j.plan)
	if err != nil {
		return nil, err
	}
	var plan Plan
	if err := json.Unmarshal(b, &plan); err != nil {
		return nil, err
	}
	cfg := ShareConfig{
		Plan: &plan, Part: plan.Parts[i], FS: j.fs, Map: m, Target: j.target, Records: w, Skipped: skips, Workers: 4, Memory: j.memory, Scratch: &manifest.Scratch{},
		RestartPoints: func(n uint32, points []byte) error {
			j.mu.Lock()
			defer j.mu.Unlock()
			return j.plan.Origins.SetRestartPoints(n, points)
		},
		BoundaryIn: func(ctx context.Context) (seam Boundary, err error) {
			select {
			case b := <-seams[i]:
				return seam, json.Unmarshal(b, &seam)
			case <-ctx.Done():
				return seam, ctx.Err()
			}
		},
		BoundaryOut: func(ctx context.Context, seam Boundary) error {
			b, err := json.Marshal(seam)
			if err != nil {
				return err
			}
			select {
			case seams[i+1] <- b:
				if j.sent != nil {
					j.sent(i)
				}
				return nil
			default:
				return errors.New("two boundaries")
			}
		},
	}
	if j.config != nil {
		j.config(i, &cfg)
	}
	s, err := NewShare(cfg)
	if err != nil {
		return nil, err
	}
	if j.lim.piece != 0 {
		s.lim = j.lim
		s.lim.apart = cmp.Or(j.lim.apart, archive.PointsApart)
	}
	return s, nil
}

// build has the manifest made, which must agree.
func (j *job) build(parts []*bytes.Buffer) error {
	readers := make([]*manifest.Reader, len(parts))
	for i, p := range parts {
		readers[i] = manifest.NewReader(bytes.NewReader(p.Bytes()))
		readers[i].Sums = j.sums
	}
	_, err := manifest.Build(manifest.BuildConfig{Dataset: 3, Root: metadata.Attr{Mode: source.TypeDir | 0o755}, Scratch: &manifest.Scratch{}}, readers, io.Discard)
	return err
}

// tree is the union of the records with the bytes that the objects hold.
func (j *job) tree(m cluster.Map, parts []*bytes.Buffer) (map[string]stageintest.Entry, error) {
	tree := map[string]stageintest.Entry{}
	used := map[stageintest.ObjectKey]bool{}
	scanned := j.scannedOwner(m, parts)
	for i, p := range parts {
		r := manifest.NewReader(p)
		r.Sums = j.sums
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
			case j.plan.Kind == source.Dir && j.plan.Parts[i].Try == 0:
				owner = j.plan.Parts[i].Node
			}
			if tree[rec.Path], err = j.entry(m, rec, owner, used); err != nil {
				return nil, err
			}
		}
	}
	for k := range j.target.Objects {
		if !used[k] {
			return nil, fmt.Errorf("object %v on %d belongs to nothing", k.Ino, k.Node)
		}
	}
	return tree, nil
}

// scannedOwner returns who owns the files of a scan, which it has to be asked for in their
// order; nil for a single pass.
func (j *job) scannedOwner(m cluster.Map, parts []*bytes.Buffer) func(rec *manifest.Record) metadata.NodeID {
	if j.scanned == nil {
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
			if hasData(&rec) && rec.Attr.Size <= j.stripe {
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

func (j *job) entry(m cluster.Map, rec manifest.Record, owner metadata.NodeID, used map[stageintest.ObjectKey]bool) (stageintest.Entry, error) {
	a := rec.Attr
	e := stageintest.Entry{Mode: a.Mode, Mtime: a.Mtime, Target: rec.Target, Link: rec.Hardlink, Sum: rec.Sum}
	if a.UID != jobUID || a.GID != jobGID {
		return e, fmt.Errorf("%q: owner %d:%d", rec.Path, a.UID, a.GID)
	}
	if rec.Hardlink != "" || a.Mode&source.TypeMask != source.TypeRegular {
		return e, nil
	}
	e.Size = a.Size
	if want := a.Size > j.stripe; want != (a.Layout.Kind == metadata.Striped) {
		return e, fmt.Errorf("%q of %d bytes has layout %+v", rec.Path, a.Size, a.Layout)
	}
	if a.Layout.Kind == metadata.Local && a.Layout.Node != owner {
		return e, fmt.Errorf("%q is on %d, its owner is %d", rec.Path, a.Layout.Node, owner)
	}
	data := make([]byte, 0, a.Size)
	for _, sp := range datapath.Spans(a.Layout.Chunk(), m.Order(a.Ino, a.Layout), 0, a.Size) {
		k := stageintest.ObjectKey{Node: sp.Node, Ino: a.Ino}
		used[k] = true
		b := j.target.Objects[k]
		if int64(len(b)) < sp.Off+sp.Len {
			return e, fmt.Errorf("%q: object on %d has %d bytes, want %d", rec.Path, sp.Node, len(b), sp.Off+sp.Len)
		}
		data = append(data, b[sp.Off:sp.Off+sp.Len]...)
	}
	e.Data = string(data)
	return e, sumsUp(&rec, e.Data)
}

// sumsUp compares the bytes of a file with its sum.
func sumsUp(rec *manifest.Record, data string) error {
	c := NewChecker(rec.Sum, rec.Attr.Size)
	_, _ = io.WriteString(c, data) // cannot fail
	if err := c.Check(); err != nil {
		return fmt.Errorf("%q: sum %x is not of its bytes: %v", rec.Path, rec.Sum, err)
	}
	return nil
}

// tarJob makes a job of an archive with small limits, so that small archives
// meet every kind of boundary.
func tarJob(archive []byte, nodes int) *job {
	j := &job{fs: stageintest.NewFS(), nodes: nodes, path: "/src/a.tar", region: 1024, stripe: 1 << 20}
	j.lim = limits{piece: 2048, carry: 1024}
	j.memory = 64 << 10
	j.fs.Add(j.path, source.TypeRegular|0o644, archive)
	return j
}
