package stagein

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

// Origins is what a dataset is made of, for those who fetch its files when its
// manifest is published already. It is JSON on its way to the nodes.
type Origins struct {
	Sources []Origin `json:"sources"`          // a manifest.Origin names them by number
	Order   Order    `json:"order"`            // of the fill
	Spills  bool     `json:"spills,omitempty"` // some files stay where they are
	Staged  bool     `json:"staged,omitempty"` // all was there when the manifest was published
	// Since is the epoch in which that began: a node that was lost afterwards has
	// nothing of it.
	Since metadata.Epoch `json:"since,omitempty"`
	// Void is the tries whose inodes are nobody's, after those that were kept: a node that
	// was lost had begun with them.
	Void []Try `json:"void,omitempty"`
}

// SetRestartPoints takes over the restart points of a source.
func (o *Origins) SetRestartPoints(number uint32, points []byte) error {
	if int(number) >= len(o.Sources) {
		return fmt.Errorf("restart points of source %d of %d: %w", number, len(o.Sources), syscall.EPROTO)
	}
	o.Sources[number].RestartPoints = points
	return nil
}

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

// keptOpen is how many archives a dataset has at the most for each to stay open
// when it was opened.
const keptOpen = 16

// fetcher reads files' bytes from their origins.
type fetcher struct {
	fs      source.FS
	origins Origins
	read    atomic.Int64 // bytes

	mu       sync.Mutex
	archives map[uint32]source.File          // guarded by mu
	kinds    map[uint32]source.Kind          // guarded by mu; of those that had to be looked at
	points   map[uint32]unpack.RestartPoints // guarded by mu; of those that were wanted
}

// kindOf is of what kind the source is that has a file.
func (q *fetcher) kindOf(from manifest.Origin) (source.Kind, error) {
	if int(from.Source) >= len(q.origins.Sources) {
		return "", fmt.Errorf("source %d of %d: %w", from.Source, len(q.origins.Sources), syscall.EIO)
	}
	return q.kind(from.Source)
}

// kind is of what kind a source is.
func (q *fetcher) kind(n uint32) (source.Kind, error) {
	o := &q.origins.Sources[n]
	if o.Kind != source.Many {
		return o.Kind, nil
	}
	q.mu.Lock()
	k, ok := q.kinds[n]
	q.mu.Unlock()
	if ok {
		return k, nil
	}
	found, err := walk.Detect(q.fs, string(o.Path))
	if err != nil {
		return "", err
	}
	q.read.Add(int64(len(found.Head)))
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.kinds == nil {
		q.kinds = make(map[uint32]source.Kind)
	}
	q.kinds[n] = found.Kind
	return found.Kind, nil
}

func (q *fetcher) close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var errs []error
	for _, f := range q.archives {
		errs = append(errs, f.Close())
	}
	q.archives = nil
	return errors.Join(errs...)
}

// stretch is a file's bytes in a source.
type stretch struct {
	file  source.File
	name  string // for messages
	base  int64  // offset of the first
	was   source.Info
	owned bool  // the file is the stretch's to close
	head  int64 // bytes before base that have to be headers of the digest check
	check uint64
	index string // that says so

	member *source.Item // of a zip archive; nil is no such
	sparse bool         // in a tar

	kind   source.Kind          // of the archive
	points unpack.RestartPoints // of a compressed one
}

// open finds the bytes of a file that has the attributes a.
func (q *fetcher) open(from manifest.Origin, a *metadata.Attr) (*stretch, error) {
	if !from.Known() || int(from.Source) >= len(q.origins.Sources) {
		return nil, fmt.Errorf("inode %v: its place in the source is not known: %w", a.Ino, syscall.EIO)
	}
	o := &q.origins.Sources[from.Source]
	var s *stretch
	var err error
	if o.Kind == source.Dir {
		s, err = q.openFile(o, from.Path, a)
	} else {
		s, err = q.openArchive(o, from)
	}
	if err != nil {
		return nil, err
	}
	if from.Zip != (manifest.Zip{}) {
		s.member = zipItem(&from, a.Size)
	}
	if err := s.same(); err != nil {
		return nil, s.end(err)
	}
	return s, nil
}

func (q *fetcher) openFile(o *Origin, path string, a *metadata.Attr) (*stretch, error) {
	name := strings.TrimSuffix(string(o.Path), "/") + "/" + path
	f, err := q.fs.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &stretch{file: counted{f, &q.read}, name: name, was: source.Info{Size: a.Size, Mtime: a.Mtime}, owned: true}, nil
}

// archive opens a whole archive.
func (q *fetcher) archive(n uint32) (*stretch, error) {
	s, err := q.openArchive(&q.origins.Sources[n], manifest.Origin{Source: n})
	if err != nil {
		return nil, err
	}
	if err := s.same(); err != nil {
		return nil, s.end(err)
	}
	return s, nil
}

func (q *fetcher) openArchive(o *Origin, from manifest.Origin) (*stretch, error) {
	s := &stretch{
		name: string(o.Path), base: from.Off, was: source.Info{Size: o.Size, Mtime: o.Mtime},
		head: from.Head, check: from.Check, index: string(o.Index), sparse: from.Sparse, kind: o.Kind,
	}
	var err error
	if len(o.RestartPoints) > 0 {
		if s.points, err = q.pointsOf(from.Source); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	s.owned = len(q.origins.Sources) > keptOpen
	var f source.File
	if s.owned {
		f, err = q.fs.Open(s.name)
	} else {
		f, err = q.kept(from.Source)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	s.file = counted{f, &q.read}
	return s, nil
}

// pointsOf is the restart points of a source.
func (q *fetcher) pointsOf(n uint32) (unpack.RestartPoints, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ps, ok := q.points[n]; ok {
		return ps, nil
	}
	ps, err := unpack.ParseRestartPoints(q.origins.Sources[n].RestartPoints)
	if err != nil {
		return nil, err
	}
	if q.points == nil {
		q.points = make(map[uint32]unpack.RestartPoints)
	}
	q.points[n] = ps
	return ps, nil
}

// kept is an archive that stays open.
func (q *fetcher) kept(n uint32) (source.File, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.archives[n]; f != nil {
		return f, nil
	}
	f, err := q.fs.Open(string(q.origins.Sources[n].Path))
	if err != nil {
		return nil, err
	}
	if q.archives == nil {
		q.archives = make(map[uint32]source.File)
	}
	q.archives[n] = f
	return f, nil
}

// same refuses a source that is no longer what was scanned.
func (s *stretch) same() error {
	now, err := s.file.Stat()
	return changed(now, err, s.name, s.was)
}

// end closes what was read, with the error that its reading had.
func (s *stretch) end(err error) error {
	if !s.owned {
		return err
	}
	if e := s.file.Close(); err == nil && e != nil {
		return fmt.Errorf("%s: %w", s.name, e)
	}
	return err
}

// pieces reads the bytes [pos, pos+n), some pieces ahead of do, which holds what it
// keeps. Their offsets are those of the source.
func (s *stretch) pieces(ctx context.Context, pool *source.Pool, pos, n int64, do func(p *source.Piece) error) error {
	if n <= int64(pool.Size()) {
		return s.piece(ctx, pool, pos, n, do)
	}
	from := source.ReadRegion(ctx, s.file, s.name, s.base+pos, s.base+pos+n, pool, readAhead)
	defer from.Close()
	for {
		p, err := from.Next()
		if err == io.EOF {
			return s.same()
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

// piece is pieces for what is read at once: nobody has to be woken for it.
func (s *stretch) piece(ctx context.Context, pool *source.Pool, pos, n int64, do func(p *source.Piece) error) error {
	p, err := pool.Get(ctx)
	if err != nil {
		return err
	}
	defer p.Release()
	if err := p.Fill(s.file, s.name, s.base+pos, n); err != nil {
		return err
	}
	if err := do(p); err != nil {
		return err
	}
	return s.same()
}

// each reads the bytes [pos, pos+n) of the file, some pieces ahead of do. The
// headers that nobody has looked at yet are read with the first.
func (s *stretch) each(ctx context.Context, bufs pools, pos, n int64, do func(b []byte, pos int64) error) error {
	if s.member != nil {
		return s.unpacked(ctx, bufs, pos, n, do)
	}
	if s.kind.Packed() && s.sparse {
		return s.holeyIn(ctx, bufs, pos, n, do)
	}
	if s.kind.Packed() {
		return s.fromPlace(ctx, bufs, pos, n, do)
	}
	if s.sparse {
		return s.holey(ctx, bufs, pos, n, do)
	}
	from := pos
	if pos == 0 {
		from -= s.head
	}
	var head []byte
	return s.pieces(ctx, bufs.in, from, pos+n-from, func(p *source.Piece) error {
		b, at := p.B, p.Off-s.base
		if at < 0 {
			k := min(-at, int64(len(b)))
			head, b, at = append(head, b[:k]...), b[k:], at+k
			if at == 0 {
				if err := s.proved(head); err != nil {
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

// proved refuses what an index says of a file whose headers say something else,
// and the index with it.
func (s *stretch) proved(head []byte) error {
	err := tar.CheckHead(head, s.base, s.check)
	if err == nil {
		return nil
	}
	if e := s.same(); e != nil {
		return e // it was right, then
	}
	then := "it is removed: stage in again"
	if e := os.Remove(s.index); e != nil && !errors.Is(e, os.ErrNotExist) {
		then = "remove it and stage in again, or give index=off"
	}
	return fmt.Errorf("%s: its index %s says what is not at offset %d: %w: %s", s.name, s.index, s.base-s.head, err, then)
}
