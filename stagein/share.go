package stagein

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// ShareConfig is what a share needs.
type ShareConfig struct {
	Plan   *Plan // without the other parts' items
	Part   Part
	FS     source.FS
	Map    cluster.Map
	Target Target
	// BoundaryIn waits for the boundary of the region before; BoundaryOut gives this
	// region's to the next. Neither is called for a directory, BoundaryIn not
	// for the first region, BoundaryOut not for the last; each at most once.
	BoundaryIn  func(ctx context.Context) (Boundary, error)
	BoundaryOut func(ctx context.Context, s Boundary) error
	Records     io.Writer // gets the records of the part, as manifest.Writer encodes them
	Skipped     io.Writer // gets a line of JSON, a Skip, for each thing that is left out; nil with OnErrorFail
	Memory      int64     // bytes of buffers; 0 is 64 MiB
	Workers     int       // PutAlls in flight; 0 is 16
	// Scratch holds the records of a speculation until it is proved.
	Scratch *manifest.Scratch
	Log     *logrus.Entry

	// Checkpointed, if it is not nil, gets the checkpoints, one after the other, when the records before them have been
	// written to Records, and flushed if Records can be.
	Checkpointed func(Checkpoint)
	// Resume is the last checkpoint of an earlier try of this part on this node, and Before the records of that; nil: the
	// beginning.
	Resume *Checkpoint
	Before io.Reader
	// RestartPoints, if it is not nil, keeps the restart points of a compressed tar, as unpack.RestartPoints.Append
	// encodes them, when all of it is staged. number is that of the source among several.
	RestartPoints func(number uint32, points []byte) error
}

// limits are bounds that tests make small.
type limits struct {
	piece      int   // bytes of a read
	carry      int   // bytes of a cut member that the boundary may carry
	checkpoint int64 // bytes between two checkpoints
	apart      int64 // bytes between two restart points of a compressed tar, at the least
}

const (
	defaultMemory  = 64 << 20
	defaultWorkers = 16
	defaultCarry   = 256 << 10
)

// Share is one node's part of a stage-in.
type Share struct {
	cfg   ShareConfig
	lim   limits
	count *counters
	ran   atomic.Bool

	pool *source.Pool
	rec  *recorder
	ctx  context.Context // of Run
	sel  *selection      // nil is all
	// owner chooses the owners of the files of a scan, in their order; nil: by hash alone.
	owner func(it *source.Item) metadata.NodeID

	pieces []Piece // of members that are cut; written by Run
}

// NewShare checks cfg. Run does the work.
func NewShare(cfg ShareConfig) (*Share, error) {
	p := cfg.Plan
	if p == nil || cfg.FS == nil || cfg.Target == nil || cfg.Records == nil || cfg.Scratch == nil {
		return nil, fmt.Errorf("share without a plan, a source, a target, a place for records or room for them: %w", syscall.EINVAL)
	}
	last := int(cfg.Part.Index) == len(p.Parts)-1
	switch {
	case cfg.Part.number(len(p.Parts)) >= metadata.DirPart:
		return nil, fmt.Errorf("share of part %d of %d, try %d: %w", cfg.Part.Index, len(p.Parts), cfg.Part.Try, syscall.EOVERFLOW)
	case p.Kind != source.Tar && p.Kind != source.Many && !p.Itemized() && !p.Kind.Packed():
		return nil, fmt.Errorf("share of a source of kind %q: %w", p.Kind, syscall.EINVAL)
	case cfg.Resume != nil && (cfg.Before == nil || !p.Checkpoints() || !cfg.Resume.validIn(p, cfg.Part)):
		return nil, fmt.Errorf("share that goes on where no checkpoint can be, or without its records: %w", syscall.EINVAL)
	case p.OnError == OnErrorSkip && cfg.Skipped == nil:
		return nil, fmt.Errorf("share that skips, without a place to say what: %w", syscall.EINVAL)
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
	if cfg.Memory <= 0 {
		cfg.Memory = defaultMemory
	}
	if cfg.Workers <= 0 {
		cfg.Workers = defaultWorkers
	}
	return &Share{cfg: cfg, count: new(counters), lim: limits{piece: wire.MaxData, carry: defaultCarry, checkpoint: checkpointEvery, apart: archive.PointsApart}}, nil
}

// Run stages the part. When it returns, all that it stored is stored and all
// records are written, or an error names what could not be. It runs once.
func (s *Share) Run(ctx context.Context) error {
	if s.ran.Swap(true) {
		return fmt.Errorf("a share runs once: %w", syscall.EBUSY)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ctx = ctx
	s.pool = source.NewPool(int(max(s.cfg.Memory/int64(s.lim.piece), archive.MinPieces)), s.lim.piece)
	s.rec = newRecorder(s, s.cfg.Records)
	var err error
	if s.sel, err = newSelection(s.cfg.FS, s.cfg.Plan.Options); err == nil {
		err = s.restore()
	}
	if err == nil {
		err = s.run(ctx)
	}
	if err == nil {
		err = s.rec.close()
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

// Pieces returns, after Run, the parts that this share has read of members that lie in several regions.
func (s *Share) Pieces() []Piece { return s.pieces }

// Progress returns how far the share is.
func (s *Share) Progress() Progress {
	return Progress{
		SourceBytes: s.count.source.Load(), SourceTotal: s.cfg.Part.Bytes, Bytes: s.count.bytes.Load(),
		Files: s.count.files.Load(), Again: s.count.again.Load(), Skipped: s.count.skipped.Load(), Done: s.count.done.Load(),
	}
}

// host returns the name of a node for a message.
func (s *Share) host(id metadata.NodeID) string {
	if n, ok := s.cfg.Map.Node(id); ok && n.Host != "" {
		return n.Host
	}
	return fmt.Sprintf("node %d", id)
}

// open opens a file of the source, which must be what was planned.
func (s *Share) open(path string, was source.Info) (source.File, error) {
	f, err := s.cfg.FS.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := archive.CheckUnchanged(f, path, was); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return archive.CountReads(source.Background(f), &s.count.source), nil
}
