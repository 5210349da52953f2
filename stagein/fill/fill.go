package fill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/zeebo/xxh3"
	"golang.org/x/sync/singleflight"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/fill/cache"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Config configures the fill of a dataset on one node.
type Config struct {
	Self    metadata.NodeID
	Files   stagein.Files
	Origins stagein.Origins
	List    []string // lines of the list file, for order list:FILE
	FS      source.FS
	// Watch returns the map, and a channel that is closed when it may have changed.
	Watch func() (cluster.Map, <-chan struct{})
	// Put writes all of p to the object of ino on this node, at offset off.
	Put func(ctx context.Context, ino metadata.Ino, p []byte, off int64) error
	// Room reports whether n more bytes of the object of ino fit on this node, not counting bytes that are overwritten;
	// nil: always. Drop removes the object.
	Room func(ino metadata.Ino, n int64) bool
	Drop func(ctx context.Context, ino metadata.Ino) error
	// Copy stores a piece here from a replica and returns its checksum. If there is no replica, ok is false, and soiled
	// is true if something was stored all the same. If want is not zero, the piece is compared with it before it is
	// stored. Nil: there are no replicas.
	Copy func(ctx context.Context, p PieceID, want [16]byte) (sum [16]byte, ok, soiled bool)
	// MayStore is called before a piece is stored without Copy, because another node offers it or it arrives with
	// others. False leaves the piece to Copy, because a replica exists here. Nil: there are no replicas.
	MayStore func(p PieceID) bool
	// Kept makes a file from data that an earlier job kept under a key, and returns its checksum, or false if there is
	// none. Nil: nothing is kept.
	Kept func(ctx context.Context, key [16]byte, ino metadata.Ino) (sum [16]byte, ok bool)
	// Stored is called when a whole file is here and recorded, in a dataset without striped files; nil: not needed.
	Stored func(ino metadata.Ino)
	// Dropped is called when a piece of a file is no longer here, before it is refetched; nil: not needed.
	Dropped   func(ino metadata.Ino)
	Peers     Peers           // nil: each node fetches its own files, piece by piece
	Journal   string          // path
	Digest    string          // of the manifest that the journal belongs to
	Boot      string          // changes with each boot of the machine
	Buffers   archive.Buffers // for reads; zero: DefaultBuffers bytes
	RunSize   int64           // bytes of an archive that one node reads for all; 0: 4 MiB
	Sums      bool            // keep the checksums of pieces in memory, for Overlapping
	CacheSize int64           // bytes cached by read-through; 0: 256 MiB
	Workers   int             // files read concurrently in the order of the fill; 0: 16
	Log       *logrus.Entry
}

// Fill fetches the files of a published dataset to one node, and is called before a file is read.
type Fill struct {
	cfg         Config
	striped     bool // some files may be on several nodes
	src         archive.Fetcher
	bufs        archive.Buffers
	present     *pieceSet
	flights     *flights
	journal     *journal
	cache       *cache.Cache[PieceID]
	bad         *unreadables
	overflow    *overflow
	demandSlots chan struct{} // one for each piece being fetched on demand
	slots       semaphore     // one for each other piece being read: Workers
	dropped     dropped
	unpacked    *pieceSet // pieces that an unpacking pass of a compressed tar may be storing, demanded or not
	limiter     *limiter
	startup     *limiter // for a directory's files, at the start
	incarnation uint64   // distinguishes this fill from earlier ones of this node

	ctx    context.Context // its end cancels the reads in flight
	cancel context.CancelFunc

	files, bytes, total atomic.Int64
	adopted             atomic.Int64 // files adopted from an earlier job; adoptedBytes counts their bytes
	adoptedBytes        atomic.Int64
	demand              atomic.Int64 // pieces fetched on demand
	readThroughs        atomic.Int64 // pieces read through
	failing             atomic.Int64 // consecutive pieces that could not be read from the source
	complete            atomic.Bool  // everything that the map assigns to this node is here
	read                atomic.Bool  // a read was made or attempted

	mu        sync.Mutex
	err       error          // guarded by mu; why this node cannot store or list pieces
	lack      error          // guarded by mu; why a piece could not be fetched
	unfetched []PieceID      // guarded by mu; pieces that the last pass could not fetch
	epoch     metadata.Epoch // guarded by mu; epoch of the map for which complete was set
	queue     []ranked       // guarded by mu; pieces missing when listed, in fill order, and an end marker
	front     int            // guarded by mu; index in queue of the first piece that may be missing

	unpacks singleflight.Group // by source number: unpacking passes of compressed archives
}

const (
	maxDemand   = 32   // pieces fetched on demand concurrently
	mostEarly   = 1024 // early demands by readers that still count as following the order; at most 1/16 of all pieces
	openPerRead = 3    // pieces being opened or recorded, for each one being read
	maxTries    = 3    // tries of a piece, after transient errors of the source
	maxFailing  = 64   // consecutive failed pieces, after which each piece is tried once
)

// New returns the fill of a dataset, after reading from the journal which pieces are here. Close must be called.
func New(cfg Config) (*Fill, error) {
	if cfg.Buffers.In == nil {
		cfg.Buffers = archive.NewBuffers(stagein.DefaultBuffers/wire.MaxData, wire.MaxData)
	}
	cfg.RunSize = cmp.Or(cfg.RunSize, 4<<20)
	if cfg.Workers <= 0 {
		cfg.Workers = stagein.DefaultWorkers
	}
	if cfg.CacheSize <= 0 {
		cfg.CacheSize = stagein.DefaultCache
	}
	f := &Fill{
		cache: cache.New[PieceID](cfg.CacheSize), bad: newUnreadables(&cfg), overflow: newOverflow(),
		cfg: cfg, src: archive.Fetcher{Fsys: cfg.FS, Sources: cfg.Origins.Sources}, present: newPieceSet(), unpacked: newPieceSet(),
		bufs:        cfg.Buffers,
		demandSlots: make(chan struct{}, maxDemand), slots: semaphore{free: cfg.Workers}, limiter: newLimiter(), startup: newLimiter(),
		incarnation: rand.Uint64(),
	}
	f.flights = newFlights(f.present)
	sum, known := cfg.Files.(interface{ Summary() manifest.Summary })
	f.striped = !known || sum.Summary().Striped.Files > 0
	f.ctx, f.cancel = context.WithCancel(context.Background())
	err := adopt(&f.cfg)
	if err != nil {
		f.cancel()
		return nil, err
	}
	var sums map[PieceID][16]byte
	if cfg.Sums {
		sums = make(map[PieceID][16]byte)
	}
	lost := make(map[PieceID]bool)
	f.journal, err = openJournal(cfg.Journal, cfg.Digest, cfg.Boot, func(p PieceID, sum [16]byte) {
		if sum == droppedSum {
			lost[p] = true
			return
		}
		delete(lost, p)
		f.restore(p)
		if sums != nil {
			sums[p] = sum
		}
	})
	if err == nil {
		f.journal.has = sums
		if err = dropAgain(f, lost); err != nil {
			err = errors.Join(err, f.journal.close())
		}
	}
	if err != nil {
		f.cancel()
		return nil, err
	}
	return f, nil
}

// restore marks a piece as present that an earlier run of the daemon fetched.
func (f *Fill) restore(p PieceID) {
	_, a, err := f.cfg.Files.Origin(p.Ino)
	m, _ := f.cfg.Watch()
	s := placementOf(m, a)
	if err != nil || p.Chunk >= s.pieces() || f.present.has(p) {
		return
	}
	n := min(s.chunk, a.Size-int64(p.Chunk)*s.chunk)
	if !f.cfg.Origins.Staged {
		f.src.Read.Add(n)
	}
	f.markPresent(p, n)
}

// markPresent counts a piece of n bytes as present, once: a completion may be delivered twice.
func (f *Fill) markPresent(p PieceID, n int64) {
	if !f.present.add(p) {
		return
	}
	f.bytes.Add(n)
	if p.Chunk == 0 {
		f.files.Add(1)
	}
	f.bad.forget(p.Ino)
	if f.cfg.Stored != nil && !f.striped { // the file's only piece
		f.cfg.Stored(p.Ino)
	}
}

// Close cancels the work under way and waits for it.
func (f *Fill) Close() error {
	f.flights.close()
	f.cancel()
	f.flights.wg.Wait()
	return errors.Join(f.journal.close(), f.src.Close())
}

// Done reports whether everything that this node owns is here, according to the map of the returned epoch.
func (f *Fill) Done() (metadata.Epoch, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.epoch, f.complete.Load()
}

// Err returns why this node cannot have its part of the dataset: its own disk or the manifest failed. Files that could
// not be read from the source are reported by Missing instead.
func (f *Fill) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Progress returns this node's progress.
func (f *Fill) Progress() stagein.Progress {
	return stagein.Progress{
		SourceBytes: f.src.Read.Load(), SourceTotal: f.total.Load() - f.Overflow().Bytes, Bytes: f.bytes.Load(), Files: f.files.Load(),
		Demand: f.demand.Load(), Through: f.readThroughs.Load(), Done: f.complete.Load(), First: f.First(),
		Adopted: f.adopted.Load(), AdoptedBytes: f.adoptedBytes.Load(),
	}
}

// Stored reports whether the file is whole on this node, in one object.
func (f *Fill) Stored(ino metadata.Ino) bool {
	if !f.HasPiece(PieceID{Ino: ino}) || !f.striped {
		return f.HasPiece(PieceID{Ino: ino})
	}
	_, a, err := f.cfg.Files.Origin(ino)
	if err != nil {
		return false
	}
	m, _ := f.cfg.Watch()
	s := placementOf(m, a)
	for chunk := uint32(1); chunk < s.pieces(); chunk++ {
		if len(s.order) != 1 || !f.present.has(PieceID{ino, chunk}) {
			return false
		}
	}
	return true
}

// HasPiece reports whether a piece is here.
func (f *Fill) HasPiece(p PieceID) bool { return f.present.has(p) }

// Fetching reports whether a piece is being fetched to this node.
func (f *Fill) Fetching(p PieceID) bool { return f.flights.of(p) != nil || f.unpacked.has(p) }

// Need returns when [off, off+n) of this node's object of ino can be read. Missing pieces are fetched before all
// others. A fetch continues if the caller stops waiting. A piece that cannot be fetched is EIO. ErrOverflow means that
// a piece does not fit on this node: the caller uses ReadOverflow.
func (f *Fill) Need(ctx context.Context, ino metadata.Ino, off, n int64) error {
	if !f.read.Load() {
		f.read.Store(true)
	}
	if f.Has(ino, off, n) {
		return nil
	}
	_, a, err := f.cfg.Files.Origin(ino)
	if err != nil || a.Size == 0 {
		return err
	}
	m, _ := f.cfg.Watch()
	s := placementOf(m, a)
	if len(s.order) == 0 {
		return fmt.Errorf("inode %v: no node was up in epoch %d: %w", ino, a.Layout.Epoch, syscall.EIO)
	}
	ps := s.overlapping(f.cfg.Self, off, n)
	waits, away := false, false
	for _, chunk := range ps {
		if p := (PieceID{ino, chunk}); !f.overflow.has(p) {
			waits = f.ask(p) != nil || waits // start all fetches at once
		}
	}
	if waits {
		defer f.limiter.demand(DemandLinger)()
		defer f.flights.wait()()
	}
	for _, chunk := range ps {
		p := PieceID{ino, chunk}
		if f.overflow.has(p) {
			away = true
			continue
		}
		err := f.await(ctx, p, f.ask)
		away = away || errors.Is(err, ErrOverflow)
		if err != nil && !errors.Is(err, ErrOverflow) {
			return err
		}
	}
	if away {
		return fmt.Errorf("inode %v: %w", ino, ErrOverflow)
	}
	return nil
}

// wrapper decides how a file is read: as background if no reader waits for it.
type wrapper func(source.File) source.File

func foreground(f source.File) source.File { return f }

// fetchPiece fetches a piece from a replica, or else from the source, and stores it here.
func (f *Fill) fetchPiece(p PieceID, fl *flight) error {
	if copied(f, p) {
		return nil
	}
	err := f.retry(func() error { return f.fetchOnce(p, fl) })
	if f.dropped.changed(p) { // the bytes may have changed in transit
		err = f.retry(func() error { return f.fetchOnce(p, fl) })
	}
	return f.outcome(p, err)
}

// retry runs do, and repeats it after a transient error of the source.
func (f *Fill) retry(do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if err == nil {
			f.failing.Store(0)
			return nil
		}
		if try == maxTries || !transient(err) || f.ctx.Err() != nil || f.failing.Load() >= maxFailing {
			f.failing.Add(1)
			return err
		}
		select {
		case <-f.ctx.Done():
		case <-time.After(time.Duration(try*try) * 100 * time.Millisecond):
		}
	}
}

// admit waits until a piece may be read: at once on demand, otherwise when a slot is free. It returns how to read, and
// a function to call after the read.
func (f *Fill) admit(fl *flight) (of wrapper, over func()) {
	if fl.wanted == nil {
		return foreground, func() {}
	}
	if !f.slots.acquire(fl.order, fl.wanted) { // one slot is enough
		return foreground, func() {}
	}
	return func(file source.File) source.File {
		return background{file, f.ctx, f.startup, fl.wanted}
	}, f.slots.release
}

func (f *Fill) fetchOnce(p PieceID, fl *flight) error {
	from, a, err := f.cfg.Files.Origin(p.Ino)
	if err != nil {
		return err
	}
	m, _ := f.cfg.Watch()
	s := placementOf(m, a)
	if len(s.order) == 0 || p.Chunk >= s.pieces() {
		return fmt.Errorf("inode %v has no piece %d: %w", p.Ino, p.Chunk, syscall.EIO)
	}
	_, n, _ := s.at(p.Chunk, f.cfg.Self)
	if !from.Sparse && !f.hasRoom(p.Ino, n) {
		return errNoRoom
	}
	if kind, err := f.src.KindOf(from); err != nil || kind.Packed() {
		if err == nil {
			err = f.fetchPacked(m, p, from.Source)
		}
		return err
	}
	if f.dropped.has(p) { // compare before writing, as a kernel view may read the object: only the right bytes go there
		_, err := f.readPiece(p, &s, from, fl, func([]byte, int64) error { return nil })
		if err != nil {
			return err
		}
	}
	sum, err := f.readPiece(p, &s, from, fl, func(b []byte, off int64) error { return f.put(f.ctx, p.Ino, b, off) })
	if err == nil {
		err = f.journal.add(p, sum)
	}
	if err != nil {
		return err
	}
	f.markPresent(p, n)
	return nil
}

// readPiece reads a piece from the source, calls put with its bytes and their offset in this node's object, and returns
// its checksum.
func (f *Fill) readPiece(p PieceID, s *placement, from manifest.Origin, fl *flight, put func(b []byte, off int64) error) ([16]byte, error) {
	src, err := f.src.Open(from, &s.a)
	if err != nil {
		return [16]byte{}, err
	}
	pos, n, off := s.at(p.Chunk, f.cfg.Self)
	sum := xxh3.New128()
	of, over := f.admit(fl)
	src.Src = of(src.Src)
	want, zeros := checker(f, p, n), f.dropped.has(p)
	all := archive.HoleFiller{End: pos + n}
	err = src.Read(f.ctx, f.bufs, pos, n, func(b []byte, at int64) error {
		_, _ = sum.Write(b) // cannot fail
		if want != nil {
			_, _ = want.Write(b) // cannot fail
		}
		if !zeros && all.Idle(b, at) {
			return nil
		}
		return put(b, off+at-pos)
	})
	over()
	if err = src.Close(err); err == nil {
		err = compareSource(f, p, sum.Sum128().Bytes(), want)
	}
	return sum.Sum128().Bytes(), err
}
