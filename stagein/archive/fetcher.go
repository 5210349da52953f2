package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// Origin is one source: an archive, or a directory.
type Origin struct {
	Path  source.Name   `json:"path"`  // with symbolic links followed
	Kind  source.Kind   `json:"kind"`  // Many is not known yet
	Size  int64         `json:"size"`  // of an archive, when it was scanned
	Mtime metadata.Time `json:"mtime"` // likewise
	// Index is the path of what told what is in an archive; "" if the archive did.
	Index source.Name `json:"index,omitempty"`
	// RestartPoints is those of a compressed tar, as unpack.RestartPoints; empty if it has none but its beginning.
	RestartPoints []byte `json:"restart_points,omitempty"`
}

const (
	// minPieces is the fewest pieces of a pool: half can be kept by the search, and the rest must do to go on.
	MinPieces = 8
	// readAhead is how many reads of one region are in flight.
	ReadAhead = 4
	// pointsApart is how many bytes there are between two restart points of a compressed tar, at the least.
	PointsApart = 4 << 20
)

// KeptOpen is how many archives a dataset has at the most for each to stay open
// when it was opened.
const KeptOpen = 16

// Fetcher reads files' bytes from their origins.
type Fetcher struct {
	Fsys    source.FS
	Sources []Origin
	Read    atomic.Int64 // bytes

	mu       sync.Mutex
	archives map[uint32]source.File          // guarded by mu
	kinds    map[uint32]source.Kind          // guarded by mu; of those that had to be looked at
	points   map[uint32]unpack.RestartPoints // guarded by mu; of those that were wanted
}

// KindOf is of what kind the source is that has a file.
func (q *Fetcher) KindOf(from manifest.Origin) (source.Kind, error) {
	if int(from.Source) >= len(q.Sources) {
		return "", fmt.Errorf("source %d of %d: %w", from.Source, len(q.Sources), syscall.EIO)
	}
	return q.Kind(from.Source)
}

// Kind is of what kind a source is.
func (q *Fetcher) Kind(n uint32) (source.Kind, error) {
	o := &q.Sources[n]
	if o.Kind != source.Many {
		return o.Kind, nil
	}
	q.mu.Lock()
	k, ok := q.kinds[n]
	q.mu.Unlock()
	if ok {
		return k, nil
	}
	found, err := walk.Detect(q.Fsys, string(o.Path))
	if err != nil {
		return "", err
	}
	q.Read.Add(int64(len(found.Head)))
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.kinds == nil {
		q.kinds = make(map[uint32]source.Kind)
	}
	q.kinds[n] = found.Kind
	return found.Kind, nil
}

func (q *Fetcher) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var errs []error
	for _, f := range q.archives {
		errs = append(errs, f.Close())
	}
	q.archives = nil
	return errors.Join(errs...)
}

// Content is a file's bytes in a source.
type Content struct {
	Src   source.File
	Name  string // for messages
	Base  int64  // offset of the first
	Was   source.Info
	owned bool  // the file is the stretch's to close
	Head  int64 // bytes before base that have to be headers of the digest check
	check uint64
	index string // that says so

	member *source.Item // of a zip archive; nil is no such
	sparse bool         // in a tar

	Kind   source.Kind          // of the archive
	Points unpack.RestartPoints // of a compressed one
}

// Open finds the bytes of a file that has the attributes a.
func (q *Fetcher) Open(from manifest.Origin, a *metadata.Attr) (*Content, error) {
	if !from.Known() || int(from.Source) >= len(q.Sources) {
		return nil, fmt.Errorf("inode %v: its place in the source is not known: %w", a.Ino, syscall.EIO)
	}
	o := &q.Sources[from.Source]
	var s *Content
	var err error
	if o.Kind == source.Dir {
		s, err = q.openFile(o, from.Path, a)
	} else {
		s, err = q.openIn(o, from)
	}
	if err != nil {
		return nil, err
	}
	if from.Zip != (manifest.Zip{}) {
		s.member = ZipItem(&from, a.Size)
	}
	if err := s.Unchanged(); err != nil {
		return nil, s.Close(err)
	}
	return s, nil
}

func (q *Fetcher) openFile(o *Origin, path string, a *metadata.Attr) (*Content, error) {
	name := strings.TrimSuffix(string(o.Path), "/") + "/" + path
	f, err := q.Fsys.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Content{Src: countedFile{f, &q.Read}, Name: name, Was: source.Info{Size: a.Size, Mtime: a.Mtime}, owned: true}, nil
}

// OpenArchive opens a whole archive.
func (q *Fetcher) OpenArchive(n uint32) (*Content, error) {
	s, err := q.openIn(&q.Sources[n], manifest.Origin{Source: n})
	if err != nil {
		return nil, err
	}
	if err := s.Unchanged(); err != nil {
		return nil, s.Close(err)
	}
	return s, nil
}

func (q *Fetcher) openIn(o *Origin, from manifest.Origin) (*Content, error) {
	s := &Content{
		Name: string(o.Path), Base: from.Off, Was: source.Info{Size: o.Size, Mtime: o.Mtime},
		Head: from.Head, check: from.Check, index: string(o.Index), sparse: from.Sparse, Kind: o.Kind,
	}
	var err error
	if len(o.RestartPoints) > 0 {
		if s.Points, err = q.RestartPoints(from.Source); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	s.owned = len(q.Sources) > KeptOpen
	var f source.File
	if s.owned {
		f, err = q.Fsys.Open(s.Name)
	} else {
		f, err = q.openKept(from.Source)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	s.Src = countedFile{f, &q.Read}
	return s, nil
}

// RestartPoints is the restart points of a source.
func (q *Fetcher) RestartPoints(n uint32) (unpack.RestartPoints, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ps, ok := q.points[n]; ok {
		return ps, nil
	}
	ps, err := unpack.ParseRestartPoints(q.Sources[n].RestartPoints)
	if err != nil {
		return nil, err
	}
	if q.points == nil {
		q.points = make(map[uint32]unpack.RestartPoints)
	}
	q.points[n] = ps
	return ps, nil
}

// openKept is an archive that stays open.
func (q *Fetcher) openKept(n uint32) (source.File, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.archives[n]; f != nil {
		return f, nil
	}
	f, err := q.Fsys.Open(string(q.Sources[n].Path))
	if err != nil {
		return nil, err
	}
	if q.archives == nil {
		q.archives = make(map[uint32]source.File)
	}
	q.archives[n] = f
	return f, nil
}

// Unchanged refuses a source that is no longer what was scanned.
func (s *Content) Unchanged() error {
	now, err := s.Src.Stat()
	return checkInfo(now, err, s.Name, s.Was)
}

// Close closes what was read, with the error that its reading had.
func (s *Content) Close(err error) error {
	if !s.owned {
		return err
	}
	if e := s.Src.Close(); err == nil && e != nil {
		return fmt.Errorf("%s: %w", s.Name, e)
	}
	return err
}

// readPieces reads the bytes [pos, pos+n), some pieces ahead of do, which holds what it
// keeps. Their offsets are those of the source.
func (s *Content) readPieces(ctx context.Context, pool *source.Pool, pos, n int64, do func(p *source.Piece) error) error {
	if n <= int64(pool.Size()) {
		return s.readPiece(ctx, pool, pos, n, do)
	}
	from := source.ReadRegion(ctx, s.Src, s.Name, s.Base+pos, s.Base+pos+n, pool, ReadAhead)
	defer from.Close()
	for {
		p, err := from.Next()
		if err == io.EOF {
			return s.Unchanged()
		}
		if err != nil {
			return err
		}
		err = do(p)
		p.Release()
		if err != nil {
			return err
		}
	}
}

// readPiece is pieces for what is read at once: nobody has to be woken for it.
func (s *Content) readPiece(ctx context.Context, pool *source.Pool, pos, n int64, do func(p *source.Piece) error) error {
	p, err := pool.Get(ctx)
	if err != nil {
		return err
	}
	defer p.Release()
	if err := p.Fill(s.Src, s.Name, s.Base+pos, n); err != nil {
		return err
	}
	if err := do(p); err != nil {
		return err
	}
	return s.Unchanged()
}

// Read reads the bytes [pos, pos+n) of the file, some pieces ahead of do. The
// headers that nobody has looked at yet are read with the first.
func (s *Content) Read(ctx context.Context, bufs Buffers, pos, n int64, do func(b []byte, pos int64) error) error {
	if s.member != nil {
		return s.readZip(ctx, bufs, pos, n, do)
	}
	if s.Kind.Packed() && s.sparse {
		return s.readPackedSparse(ctx, bufs, pos, n, do)
	}
	if s.Kind.Packed() {
		return s.readPacked(ctx, bufs, pos, n, do)
	}
	if s.sparse {
		return s.readSparse(ctx, bufs, pos, n, do)
	}
	from := pos
	if pos == 0 {
		from -= s.Head
	}
	var head []byte
	return s.readPieces(ctx, bufs.In, from, pos+n-from, func(p *source.Piece) error {
		b, at := p.B, p.Off-s.Base
		if at < 0 {
			k := min(-at, int64(len(b)))
			head, b, at = append(head, b[:k]...), b[k:], at+k
			if at == 0 {
				if err := s.checkHead(head); err != nil {
					return err
				}
			}
		}
		if len(b) == 0 {
			return nil
		}
		return do(b, at)
	})
}

// checkHead refuses what an index says of a file whose headers say something else,
// and the index with it.
func (s *Content) checkHead(head []byte) error {
	err := tar.CheckHead(head, s.Base, s.check)
	if err == nil {
		return nil
	}
	if e := s.Unchanged(); e != nil {
		return e // it was right, then
	}
	then := "it is removed: stage in again"
	if e := os.Remove(s.index); e != nil && !errors.Is(e, os.ErrNotExist) {
		then = "remove it and stage in again, or give index=off"
	}
	return fmt.Errorf("%s: its index %s says what is not at offset %d: %w: %s", s.Name, s.index, s.Base-s.Head, err, then)
}

// countedFile counts the bytes that are read of a file.
type countedFile struct {
	source.File
	n *atomic.Int64
}

// CountReads is f, and adds to n the bytes that are read of it.
func CountReads(f source.File, n *atomic.Int64) source.File { return countedFile{f, n} }

// ReadAt implements io.ReaderAt.
func (c countedFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.File.ReadAt(p, off)
	c.n.Add(int64(n))
	return n, err
}

// Unwrap implements source.Wrapper.
func (c countedFile) Unwrap() source.File { return c.File }

// CheckUnchanged refuses a file that is no longer what was planned.
func CheckUnchanged(f source.File, path string, was source.Info) error {
	now, err := f.Stat()
	return checkInfo(now, err, path, was)
}

// checkInfo refuses a file that is now, or of which only err is known, if it was
// something else.
func checkInfo(now source.Info, err error, path string, was source.Info) error {
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	case now.Size != was.Size:
		return fmt.Errorf("%s: had %d bytes when the stage-in began, has %d now: %w", path, was.Size, now.Size, syscall.ESTALE)
	case !was.Same(now):
		return fmt.Errorf("%s: was changed since the stage-in began: %w", path, syscall.ESTALE)
	}
	return nil
}

// Explain is what made reading a source fail with err: that it was changed, if it was.
func (s *Content) Explain(err error) error {
	if err == nil {
		return nil
	}
	if now := s.Unchanged(); errors.Is(now, syscall.ESTALE) {
		return now
	}
	return err
}
