package dataset

import (
	"context"
	"crypto/sha256"
	"hash"
	"io"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// overflowFiles holds the overflow that this node reads from the source in order to verify it. From directories and
// archives with random access it reads the files whose paths this node would own. Each compressed tar is read once from
// its beginning, by one node for all of its files.
type overflowFiles struct {
	r    *verification
	fill *fill.Fill
	ctx  context.Context
	g    *errgroup.Group
	tars map[uint32]map[metadata.Ino]*overflowFile // by number of the compressed tar
	err  error                                     // the first failure to look up a file
}

// overflowFile is one overflow file, which may have several names.
type overflowFile struct {
	paths []string
	a     metadata.Attr
	want  [16]byte
	c     *stagein.Checker
	sha   hash.Hash
}

// sourceAtOnce is how many files are read from the source concurrently.
const sourceAtOnce = 16

func newOverflowFiles(ctx context.Context, r *verification, f *fill.Fill) *overflowFiles {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sourceAtOnce)
	return &overflowFiles{r: r, fill: f, ctx: ctx, g: g, tars: make(map[uint32]map[metadata.Ino]*overflowFile)}
}

// add adds a file if this node must read it; own says that the node owns it.
func (o *overflowFiles) add(path string, a metadata.Attr, own bool) {
	if o.err != nil || a.Size == 0 {
		return
	}
	self, up := o.r.v.n.Self(), o.r.m.Up()
	n, packed, err := o.fill.PackedIn(a.Ino)
	switch {
	case err != nil:
		o.err = err
	case packed && (own || len(up) > 0 && up[int(n)%len(up)] == self):
		if o.tars[n] == nil {
			o.tars[n] = make(map[metadata.Ino]*overflowFile)
		}
		if x := o.tars[n][a.Ino]; x != nil {
			x.paths = append(x.paths, path)
			return
		}
		o.tars[n][a.Ino] = &overflowFile{paths: []string{path}, a: a}
	case !packed && (own || o.r.m.FileOwner(path) == self):
		o.g.Go(func() error { return o.read(map[metadata.Ino]*overflowFile{a.Ino: {paths: []string{path}, a: a}}) })
	}
}

// wait reads the compressed tars and returns when all files were read.
func (o *overflowFiles) wait() error {
	if o == nil {
		return nil
	}
	for _, files := range o.tars {
		if o.err == nil {
			o.err = o.read(files)
		}
	}
	if err := o.g.Wait(); err != nil {
		return err
	}
	return o.err
}

// read compares files of one source. A bad file is read once more, since it may have been damaged in transit.
func (o *overflowFiles) read(files map[metadata.Ino]*overflowFile) error {
	inos := make([]metadata.Ino, 0, len(files))
	for ino, x := range files {
		var err error
		if x.want, _, err = o.r.table.table.Record(ino); err != nil {
			return err
		}
		inos = append(inos, ino)
	}
	slices.Sort(inos)
	to := func(ino metadata.Ino) io.Writer { return files[ino].begin(o.r.q.SHA256) }
	return o.fill.ReadSource(o.ctx, inos, to, func(ino metadata.Ino, err error) {
		x := files[ino]
		if err = x.check(err); err != nil {
			if o.fill.ReadSource(o.ctx, []metadata.Ino{ino}, to, func(_ metadata.Ino, e error) { err = x.check(e) }) != nil {
				return // the first call fails as well
			}
		}
		o.done(x, err)
	})
}

// begin returns the writer for the bytes of the file, from the first byte on.
func (x *overflowFile) begin(sha bool) io.Writer {
	x.c = stagein.NewChecker(x.want, x.a.Size)
	if !sha {
		return x.c
	}
	x.sha = sha256.New()
	return io.MultiWriter(x.c, x.sha)
}

// check returns the error of a file whose read ended with err, or its checksum mismatch.
func (x *overflowFile) check(err error) error {
	if err != nil {
		return err
	}
	if err := x.c.Check(); err != nil {
		return fill.Mismatch(err)
	}
	return nil
}

func (o *overflowFiles) done(x *overflowFile, err error) {
	if err != nil {
		o.r.note(BadFile{Path: source.Name(x.paths[0]), Ino: x.a.Ino, Source: true, Error: o.fill.Explain(x.a.Ino, err)})
	}
	for _, path := range x.paths {
		o.r.count(path, x.a.Size, x.want == [16]byte{}, x.sha, err)
	}
}
