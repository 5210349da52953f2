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
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// Origin is one source of a dataset: an archive or a directory. It is encoded as JSON.
type Origin struct {
	Path  source.Name   `json:"path"`  // with symbolic links resolved
	Kind  source.Kind   `json:"kind"`  // Many: not detected yet
	Size  int64         `json:"size"`  // of an archive, when it was scanned
	Mtime metadata.Time `json:"mtime"` // likewise
	// Index is the path of the index that an archive's members were taken from; "": the archive was scanned.
	Index source.Name `json:"index,omitempty"`
}

const (
	// MinPieces is the least size of a pool: the search for a header may hold half of it while reading continues.
	MinPieces = 8
	// ReadAhead is how many reads of one region are in flight.
	ReadAhead = 4
)

// KeptOpen bounds the archives of a dataset that stay open after the first read. If a dataset has more archives, they
// are opened for each read.
const KeptOpen = 16

// Fetcher opens files in their origins.
type Fetcher struct {
	Fsys    source.FS
	Sources []Origin
	Read    atomic.Int64 // bytes read

	mu       sync.Mutex
	archives map[uint32]source.File // guarded by mu
	kinds    map[uint32]source.Kind // guarded by mu; of origins whose kind had to be detected
}

// KindOf returns the kind of the source that holds a file.
func (q *Fetcher) KindOf(from manifest.Origin) (source.Kind, error) {
	if int(from.Source) >= len(q.Sources) {
		return "", fmt.Errorf("source %d of %d: %w", from.Source, len(q.Sources), syscall.EIO)
	}
	return q.Kind(from.Source)
}

// Kind returns the kind of source n. It detects the kind if that is not yet known.
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

// Close closes the open archives.
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

// Content is the bytes of one file in its origin, or of a whole archive.
type Content struct {
	Src   source.File
	Name  string // for messages
	Base  int64  // offset of its first byte in the source, or in the unpacked source
	Was   source.Info
	owned bool  // Close closes Src
	Head  int64 // bytes of headers before Base, whose digest must be check unless that is 0
	check uint64
	index string // path of the index that has check

	member *source.Item // nil: not a member of a zip archive
	sparse bool         // a sparse member of a tar

	Kind source.Kind // of the archive
}

// Open opens a file with the attributes a at its origin. The source must not have changed since the scan.
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
	kind, err := q.Kind(from.Source)
	if err != nil {
		return nil, err
	}
	s := &Content{
		Name: string(o.Path), Base: from.Off, Was: source.Info{Size: o.Size, Mtime: o.Mtime},
		Head: from.Head, check: from.Check, index: string(o.Index), sparse: from.Sparse, Kind: kind,
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

// openKept opens an archive and keeps it open.
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

// Unchanged returns ESTALE if the source has changed since the scan.
func (s *Content) Unchanged() error {
	now, err := s.Src.Stat()
	return checkInfo(now, err, s.Name, s.Was)
}

// Close ends a read that returned err, and returns err or the error of closing.
func (s *Content) Close(err error) error {
	if !s.owned {
		return err
	}
	if e := s.Src.Close(); err == nil && e != nil {
		return fmt.Errorf("%s: %w", s.Name, e)
	}
	return err
}

// readPieces calls do with the pieces of [pos, pos+n), with read-ahead. Their offsets are those in the source. do must
// hold the pieces that it keeps.
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

// readPiece is readPieces for a single piece, read by the caller's goroutine.
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

// Read calls do with the bytes [pos, pos+n) of the file in order, with read-ahead. With the first bytes, it reads and
// checks headers that are known only from an index. Files of a compressed tar are read with Unpack.
func (s *Content) Read(ctx context.Context, bufs Buffers, pos, n int64, do func(b []byte, pos int64) error) error {
	if s.member != nil {
		return s.readZip(ctx, bufs, pos, n, do)
	}
	if s.Kind.Packed() {
		return fmt.Errorf("%s: only the whole archive can be unpacked: %w", s.Name, syscall.EIO)
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

// checkHead compares the headers of a file with its index entry. It removes an index that is wrong.
func (s *Content) checkHead(head []byte) error {
	err := tar.CheckHead(head, s.Base, s.check)
	if err == nil {
		return nil
	}
	if e := s.Unchanged(); e != nil {
		return e // the source has changed; the index was right
	}
	then := "it is removed: stage in again"
	if e := os.Remove(s.index); e != nil && !errors.Is(e, os.ErrNotExist) {
		then = "remove it and stage in again, or give index=off"
	}
	return fmt.Errorf("%s: its index %s does not match the archive at offset %d: %w: %s", s.Name, s.index, s.Base-s.Head, err, then)
}

// countedFile counts the bytes read from a file.
type countedFile struct {
	source.File
	n *atomic.Int64
}

// CountReads returns f with the number of bytes read added to n.
func CountReads(f source.File, n *atomic.Int64) source.File { return countedFile{f, n} }

// ReadAt implements io.ReaderAt.
func (c countedFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.File.ReadAt(p, off)
	c.n.Add(int64(n))
	return n, err
}

// Unwrap implements source.Wrapper.
func (c countedFile) Unwrap() source.File { return c.File }

// CheckUnchanged returns ESTALE if f no longer matches was.
func CheckUnchanged(f source.File, path string, was source.Info) error {
	now, err := f.Stat()
	return checkInfo(now, err, path, was)
}

// checkInfo is CheckUnchanged for a result of Stat.
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

// Explain returns why a read failed with err: ESTALE if the source has changed, otherwise err.
func (s *Content) Explain(err error) error {
	if err == nil {
		return nil
	}
	if now := s.Unchanged(); errors.Is(now, syscall.ESTALE) {
		return now
	}
	return err
}
