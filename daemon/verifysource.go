package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// spilledFiles is the files of a dataset that are in the source alone, and that this node
// reads there to compare them: of directories and archives in which each can be found by
// itself, those whose paths this node would own; of compressed tars, each of which is gone
// through once, all of some.
type spilledFiles struct {
	v    *verifier
	fill *stagein.Fill
	ctx  context.Context
	g    *errgroup.Group
	all  map[uint32]map[metadata.Ino]*spilledFile // of compressed tars, by their number
	err  error                                    // why one could not be looked for
}

// spilledFile is one of them, which may have several names.
type spilledFile struct {
	paths []string
	a     metadata.Attr
	want  [16]byte
	c     *stagein.Checker
	sha   hash.Hash
}

// sourceAtOnce is how many files are read at a time from a source, which is far.
const sourceAtOnce = 16

func newSpilledFiles(ctx context.Context, v *verifier, f *stagein.Fill) *spilledFiles {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sourceAtOnce)
	return &spilledFiles{v: v, fill: f, ctx: ctx, g: g, all: make(map[uint32]map[metadata.Ino]*spilledFile)}
}

// add takes a file on, if it falls to this node, or is its own.
func (s *spilledFiles) add(path string, a metadata.Attr, own bool) {
	if s.err != nil || a.Size == 0 {
		return
	}
	n, packed, err := s.fill.PackedIn(a.Ino)
	up := s.v.m.Up()
	switch {
	case err != nil:
		s.err = err
	case packed && (own || len(up) > 0 && up[int(n)%len(up)] == s.v.d.job.Self):
		if s.all[n] == nil {
			s.all[n] = make(map[metadata.Ino]*spilledFile)
		}
		if x := s.all[n][a.Ino]; x != nil {
			x.paths = append(x.paths, path)
			return
		}
		s.all[n][a.Ino] = &spilledFile{paths: []string{path}, a: a}
	case !packed && (own || s.v.m.FileOwner(path) == s.v.d.job.Self):
		s.g.Go(func() error { return s.read(map[metadata.Ino]*spilledFile{a.Ino: {paths: []string{path}, a: a}}) })
	}
}

// wait reads what is left and returns when all is read.
func (s *spilledFiles) wait() error {
	if s == nil {
		return nil
	}
	for _, files := range s.all {
		if s.err == nil {
			s.err = s.read(files)
		}
	}
	if err := s.g.Wait(); err != nil {
		return err
	}
	return s.err
}

// read compares files of a source. What is not right is read once more, as it may have been
// so on its way only.
func (s *spilledFiles) read(files map[metadata.Ino]*spilledFile) error {
	inos := make([]metadata.Ino, 0, len(files))
	for ino, x := range files {
		var err error
		if x.want, _, err = s.v.table.Record(ino); err != nil {
			return err
		}
		inos = append(inos, ino)
	}
	slices.Sort(inos)
	to := func(ino metadata.Ino) io.Writer { return files[ino].begin(s.v.sha) }
	return s.fill.ReadSource(s.ctx, inos, to, func(ino metadata.Ino, err error) {
		x := files[ino]
		if err = x.check(err); err != nil {
			if s.fill.ReadSource(s.ctx, []metadata.Ino{ino}, to, func(_ metadata.Ino, e error) { err = x.check(e) }) != nil {
				return // as this one does
			}
		}
		s.over(x, err)
	})
}

// begin is where the bytes of the file go, from the first one on.
func (x *spilledFile) begin(sha bool) io.Writer {
	x.c = stagein.NewChecker(x.want, x.a.Size)
	if !sha {
		return x.c
	}
	x.sha = sha256.New()
	return io.MultiWriter(x.c, x.sha)
}

// check is what is wrong with a file whose reading ended with err.
func (x *spilledFile) check(err error) error {
	if err != nil {
		return err
	}
	if err := x.c.Check(); err != nil {
		return stagein.Wrong(err)
	}
	return nil
}

// over takes note of a file that was read.
func (s *spilledFiles) over(x *spilledFile, err error) {
	if err != nil {
		s.v.note(BadFile{Path: source.Name(x.paths[0]), Ino: x.a.Ino, Source: true, Error: s.fill.Complaint(x.a.Ino, err)})
	}
	v := s.v
	v.mu.Lock()
	defer v.mu.Unlock()
	n := int64(len(x.paths))
	v.res.Files += n
	v.res.Bytes += n * x.a.Size
	if x.want == ([16]byte{}) {
		v.res.Unsummed += n
	}
	for _, path := range x.paths {
		if err == nil && x.sha != nil {
			v.sums = append(v.sums, sumLine(hex.EncodeToString(x.sha.Sum(nil)), path))
		}
	}
}
