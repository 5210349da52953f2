package fill

import (
	"cmp"
	"context"
	"io"
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
)

// PackedIn returns the number of the source that contains a file, and whether that source is a compressed tar, of which
// many files are read in one pass.
func (f *Fill) PackedIn(ino metadata.Ino) (n uint32, packed bool, err error) {
	from, _, err := f.cfg.Files.Origin(ino)
	if err != nil {
		return 0, false, err
	}
	kind, err := f.src.KindOf(from)
	return from.Source, kind.Packed(), err
}

// ReadSource reads files from the source, bypassing the cache, in source order. It writes each to the writer that to
// returns, then calls done. It unpacks a compressed tar once for all files. It returns an error only if ctx ends.
func (f *Fill) ReadSource(ctx context.Context, inos []metadata.Ino, to func(metadata.Ino) io.Writer, done func(metadata.Ino, error)) error {
	r := sourceReader{f: f}
	defer r.close()
	for _, x := range f.inSourceOrder(inos) {
		err := x.err
		if err == nil {
			err = r.read(ctx, &x, to(x.ino))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		done(x.ino, err)
	}
	return nil
}

// Explain returns the message for a file that could not be read from the source, or has changed there.
func (f *Fill) Explain(ino metadata.Ino, err error) string {
	x := Unreadable{Ino: ino, Error: err.Error() + ": " + remedy(err)}
	if from, _, e := f.cfg.Files.Origin(ino); e == nil {
		x.Source, x.Off = f.bad.where(from)
	}
	return x.explanation()
}

// Mismatch marks err as a mismatch: the source's bytes differ from the staged ones.
func Mismatch(err error) error { return &mismatchError{err} }

// located is a file with its origin.
type located struct {
	ino  metadata.Ino
	from manifest.Origin
	a    metadata.Attr
	err  error
}

func (f *Fill) locate(ino metadata.Ino) located {
	x := located{ino: ino}
	x.from, x.a, x.err = f.cfg.Files.Origin(ino)
	return x
}

// inSourceOrder returns files in the order in which they lie in the source.
func (f *Fill) inSourceOrder(inos []metadata.Ino) []located {
	all := make([]located, len(inos))
	for i, ino := range inos {
		all[i] = f.locate(ino)
	}
	slices.SortStableFunc(all, func(a, b located) int {
		return cmp.Or(cmp.Compare(a.from.Source, b.from.Source), cmp.Compare(a.from.Off, b.from.Off))
	})
	return all
}

// sourceReader reads one file after another.
type sourceReader struct {
	f    *Fill
	n    uint32 // number of the source that x unpacks
	x    *archive.Unpacking
	last *archive.Content // the content whose file x reads
}

func (r *sourceReader) read(ctx context.Context, x *located, w io.Writer) error {
	s, err := r.f.src.Open(x.from, &x.a)
	if err != nil {
		return err
	}
	to := func(b []byte, _ int64) error { _, err := w.Write(b); return err }
	if !s.Kind.Packed() {
		return s.Close(s.Explain(s.Read(ctx, r.f.bufs, 0, x.a.Size, to)))
	}
	begin := s.Base - s.Head
	if r.x == nil || r.n != x.from.Source || begin < r.x.Pos {
		r.close()
		r.x, r.n, r.last = s.Unpack(ctx, r.f.bufs), x.from.Source, s
	} else {
		defer s.Close(nil) // read only
	}
	if err = s.ReadFile(r.x, x.a.Size, to); err == nil {
		err = s.Unchanged()
	}
	if err != nil {
		err = s.Explain(err)
		r.close()
	}
	return err
}

// close closes the current unpacking pass.
func (r *sourceReader) close() {
	if r.x != nil {
		r.x.Close()
		_ = r.last.Close(nil) // read only
		r.x = nil
	}
}
