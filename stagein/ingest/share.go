package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Config configures a share.
type Config struct {
	Plan   *stagein.Plan // without the items of other parts
	Part   stagein.Part
	FS     source.FS
	Map    cluster.Map
	Target stagein.Target
	// BoundaryIn waits for the boundary of the region before; BoundaryOut passes this region's boundary to the next.
	// Each is called at most once: neither for a directory, BoundaryIn not for the first region, BoundaryOut not for
	// the last.
	BoundaryIn  func(ctx context.Context) (Boundary, error)
	BoundaryOut func(ctx context.Context, s Boundary) error
	Records     io.Writer    // receives the records of the part, encoded by manifest.Writer
	Skipped     io.Writer    // receives a line of JSON, a Skip, for each entry that is left out; nil with OnErrorFail
	Pool        *source.Pool // buffers for reads; nil: DefaultBuffers bytes
	Limits      Limits
	Workers     int // concurrent PutAlls; 0: 16
	// Scratch holds the records of a speculation until it is proved.
	Scratch *manifest.Scratch

	// Checkpointed, if not nil, receives the checkpoints in order, each after the records before it were written to
	// Records, and flushed if Records can be flushed.
	Checkpointed func(Checkpoint)
	// Resume is the last checkpoint of an earlier try of this part on this node, and Before holds the records of that
	// try; nil: start at the beginning.
	Resume *Checkpoint
	Before io.Reader
}

// Limits are step sizes of a share; 0: the default.
type Limits struct {
	Carry      int   // bytes of a cut member that a boundary may carry; 256 KiB
	Checkpoint int64 // bytes between two checkpoints; 4 MiB
}

// Share is one node's part of a stage-in.
type Share struct {
	placer stagein.Placer
	cfg    Config
	count  *counters
	ran    atomic.Bool

	pool *source.Pool
	rec  *stagein.Recorder
	ctx  context.Context    // context of Run
	sel  *stagein.Selection // nil: everything

	pieces []stagein.Piece // of cut members; written by Run
}

// New checks cfg and returns a share. Run does the work.
func New(cfg Config) (*Share, error) {
	p := cfg.Plan
	if p == nil || cfg.FS == nil || cfg.Target == nil || cfg.Records == nil || cfg.Scratch == nil {
		return nil, fmt.Errorf("share without a plan, a source, a target, a place for records or room for them: %w", syscall.EINVAL)
	}
	last := int(cfg.Part.Index) == len(p.Parts)-1
	switch {
	case cfg.Part.Number(len(p.Parts)) >= metadata.DirPart:
		return nil, fmt.Errorf("share of part %d of %d, try %d: %w", cfg.Part.Index, len(p.Parts), cfg.Part.Try, syscall.EOVERFLOW)
	case p.Kind != source.Tar && p.Kind != source.Many && !p.Itemized() && !p.Kind.Packed():
		return nil, fmt.Errorf("share of a source of kind %q: %w", p.Kind, syscall.EINVAL)
	case cfg.Resume != nil && (cfg.Before == nil || !p.Checkpoints() || !cfg.Resume.validIn(p, cfg.Part)):
		return nil, fmt.Errorf("resume from an invalid checkpoint, or without records: %w", syscall.EINVAL)
	case p.OnError == stagein.OnErrorSkip && cfg.Skipped == nil:
		return nil, fmt.Errorf("on-error=skip without a writer of skipped names: %w", syscall.EINVAL)
	case p.Kind == source.Dir, p.Kind == source.Many:
	case p.Kind == source.Zip:
		if cfg.Part.Off < 0 || cfg.Part.Off > cfg.Part.End || cfg.Part.Index == 0 && cfg.Part.Off > int64(len(p.Head)) {
			return nil, fmt.Errorf("share [%d, %d) of a zip archive: %w", cfg.Part.Off, cfg.Part.End, syscall.EINVAL)
		}
	case p.Kind.Packed():
		if len(p.Parts) != 1 || cfg.Part.Off != int64(len(p.Head)) || cfg.Part.End != p.Size {
			return nil, fmt.Errorf("share [%d, %d) of a compressed tar: %w", cfg.Part.Off, cfg.Part.End, syscall.EINVAL)
		}
	case int(cfg.Part.Index) >= len(p.Parts) || cfg.Part.Off%source.BlockSize != 0 || cfg.Part.Off > cfg.Part.End:
		return nil, fmt.Errorf("share of region %d [%d, %d): %w", cfg.Part.Index, cfg.Part.Off, cfg.Part.End, syscall.EINVAL)
	case cfg.Part.Index > 0 && cfg.BoundaryIn == nil, !last && cfg.BoundaryOut == nil:
		return nil, fmt.Errorf("share of region %d without boundaries: %w", cfg.Part.Index, syscall.EINVAL)
	}
	if cfg.Pool == nil {
		cfg.Pool = source.NewPool(stagein.DefaultBuffers/wire.MaxData, wire.MaxData)
	}
	l := &cfg.Limits
	l.Carry, l.Checkpoint = cmp.Or(l.Carry, 256<<10), cmp.Or(l.Checkpoint, 4<<20)
	if cfg.Workers <= 0 {
		cfg.Workers = stagein.DefaultWorkers
	}
	return &Share{placer: stagein.Placer{Plan: cfg.Plan, Part: cfg.Part, Map: cfg.Map}, cfg: cfg, count: new(counters), pool: cfg.Pool}, nil
}

// Run stages the part. When it returns, all data and records are written, or the error names the failure. It runs once.
func (s *Share) Run(ctx context.Context) error {
	if s.ran.Swap(true) {
		return fmt.Errorf("a share runs once: %w", syscall.EBUSY)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ctx = ctx
	s.rec = stagein.NewRecorder(s.cfg.Plan, s.cfg.Part, s.cfg.Records)
	var err error
	if s.sel, err = stagein.NewSelection(s.cfg.FS, s.cfg.Plan.Options); err == nil {
		err = s.restore()
	}
	if err == nil {
		err = s.run(ctx)
	}
	if err == nil {
		err = s.rec.Close()
	}
	if err != nil {
		return fmt.Errorf("stage-in of %s: %w", s.cfg.Plan.Source, s.full(err))
	}
	s.count.done.Store(true)
	return nil
}

func (s *Share) run(ctx context.Context) error {
	switch kind := s.cfg.Plan.Kind; {
	case kind == source.Dir:
		return s.runDir(ctx)
	case kind == source.Many:
		return s.runMany(ctx)
	case kind == source.Zip:
		return s.runZip(ctx)
	case kind.Packed():
		return s.runPacked(ctx)
	}
	return s.runTar(ctx)
}

// Pieces returns, after Run, the pieces of members spanning several regions that this share has read.
func (s *Share) Pieces() []stagein.Piece { return s.pieces }

// Progress returns the progress of the share.
func (s *Share) Progress() stagein.Progress {
	return stagein.Progress{
		SourceBytes: s.count.source.Load(), SourceTotal: s.cfg.Part.Bytes, Bytes: s.count.bytes.Load(),
		Files: s.count.files.Load(), Again: s.count.again.Load(), Skipped: s.count.skipped.Load(), Done: s.count.done.Load(),
	}
}

// host returns the name of a node for messages.
func (s *Share) host(id metadata.NodeID) string {
	if n, ok := s.cfg.Map.Node(id); ok && n.Host != "" {
		return n.Host
	}
	return fmt.Sprintf("node %d", id)
}

// open opens a file of the source, and checks that it has not changed since it was planned.
func (s *Share) open(path string, was source.Info) (source.File, error) {
	f, err := s.cfg.FS.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := archive.CheckUnchanged(f, path, was); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return archive.CountReads(f, &s.count.source), nil
}

// unchanged returns ESTALE if the archive f has changed since it was planned, and otherwise err.
func (s *Share) unchanged(f source.File, err error) error {
	if err != nil && !skippable(err) {
		return err
	}
	p := s.cfg.Plan
	e := archive.CheckUnchanged(f, string(p.Source), source.Info{Size: p.Size, Mtime: p.Mtime})
	if err == nil || errors.Is(e, syscall.ESTALE) {
		return e
	}
	return err
}

// counters holds the values behind Progress.
type counters struct {
	source, bytes, files, again, skipped atomic.Int64
	need                                 atomic.Int64 // bytes of members of compressed tars
	done                                 atomic.Bool
	given                                sync.Map // *atomic.Int64 by node: bytes sent to it
}

// to returns the counter of bytes sent to a node.
func (c *counters) to(node metadata.NodeID) *atomic.Int64 {
	n, ok := c.given.Load(node)
	if !ok {
		n, _ = c.given.LoadOrStore(node, new(atomic.Int64))
	}
	return n.(*atomic.Int64)
}
