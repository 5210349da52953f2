package fill

import (
	"context"
	"fmt"
	"io"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// maxNeighbours bounds the bytes of an archive that one request reads for several overflow files. With it a filesystem
// that reads whole pages still reads at most 1 MiB.
const maxNeighbours = wire.MaxData - 64<<10

// neighbours are overflow files side by side in a tar or zip archive, read with one request to the source.
type neighbours struct {
	f     *Fill
	files []*neighbour // in the order of the archive
}

// neighbour is one overflow file; its bytes go into the cache.
type neighbour struct {
	*located
	b    []byte
	done func(error) // ends the read for its waiters
}

// begin and end bound the file in the archive, including the headers that must be read too.
func (x *located) begin() int64 { return x.from.Off - x.from.Head }
func (x *located) end() int64 {
	if x.from.Zip != (manifest.Zip{}) {
		return x.from.Off + x.from.Zip.Span
	}
	return x.from.Off + x.a.Size
}

// ReadMany reads overflow files into buf, one after the other. It reads neighbours in an archive with one request to
// the source; concurrent readers wait for that request. Files that it reads from the source do not stay in the cache.
func (f *Fill) ReadMany(ctx context.Context, rs []datapath.RangeRead, buf []byte) {
	began := f.readNeighbours(rs)
	for i := range rs {
		r := &rs[i]
		b := buf[:r.Len:r.Len]
		buf = buf[r.Len:]
		n, through, err := f.ReadThrough(ctx, r.Ino, b, r.Off)
		switch r.Data = b[:n]; {
		case err != nil:
			r.Err = err
		case !through || int64(n) < r.Len:
			r.Err = fmt.Errorf("inode %v: %d of %d bytes: %w", r.Ino, n, r.Len, syscall.EAGAIN)
		}
	}
	for _, p := range began {
		f.cache.Forget(p)
	}
}

// readNeighbours starts reading the files that are neither cached nor being read, and returns their pieces.
func (f *Fill) readNeighbours(rs []datapath.RangeRead) (began []PieceID) {
	var all []*neighbour
	for _, x := range f.inSourceOrder(inosOf(rs)) {
		if !f.inArchive(&x) {
			continue
		}
		p := PieceID{Ino: x.ino}
		if b, done, ok := f.cache.Begin(p, x.a.Size); ok {
			all, began = append(all, &neighbour{&x, b, done}), append(began, p)
		}
	}
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].follows(all[n-1].located) && all[n].end()-all[0].begin() <= f.mostTogether() {
			n++
		}
		c := neighbours{f, all[:n:n]}
		f.spawn(c.read)
		all = all[n:]
	}
	return began
}

func inosOf(rs []datapath.RangeRead) []metadata.Ino {
	inos := make([]metadata.Ino, len(rs))
	for i := range rs {
		inos[i] = rs[i].Ino
	}
	return inos
}

// mostTogether bounds the bytes that one request reads: they must fit in one buffer.
func (f *Fill) mostTogether() int64 { return min(maxNeighbours, int64(f.bufs.In.Size())) }

// inArchive reports whether a file overflowed and lies in an archive that is read by offset, so that it can be read
// together with its neighbours.
func (f *Fill) inArchive(x *located) bool {
	if x.err != nil || !IsOverflow(&x.a) || x.a.Size == 0 || x.a.Size > stagein.DefaultStripe || x.from.Sparse || !x.from.Known() {
		return false
	}
	kind, err := f.src.KindOf(x.from)
	return err == nil && inRuns(kind) && x.end()-x.begin() <= f.mostTogether()
}

// follows reports whether x lies behind before in the same archive, with at most overGap bytes between.
func (x *located) follows(before *located) bool {
	gap := x.begin() - before.end()
	return x.from.Source == before.from.Source && gap >= 0 && gap <= overGap
}

// mostSide is how many inodes on either side of a file are tried as its neighbours. Most datasets number inodes in
// archive order; the origins decide.
const mostSide = 128

// Neighbours returns the wanted overflow files that one request to the source reads together with the file ino: those
// next to it in the same run of the archive.
func (f *Fill) Neighbours(ino metadata.Ino, wanted func(metadata.Ino) bool) (all []metadata.Ino) {
	x := f.locate(ino)
	if !f.inArchive(&x) {
		return nil
	}
	first, last := x, x
	joins := func(y metadata.Ino) bool {
		z := f.locate(y)
		switch {
		case !f.inArchive(&z) || z.begin()/stagein.OverflowRun != x.begin()/stagein.OverflowRun:
			return false
		case z.follows(&last) && z.end()-first.begin() <= f.mostTogether():
			last = z
		case first.follows(&z) && last.end()-z.begin() <= f.mostTogether():
			first = z
		default:
			return false
		}
		all = append(all, y)
		return true
	}
	for _, step := range []metadata.Ino{1, ^metadata.Ino(0)} {
		y := ino + step
		for i := 0; i < mostSide && y.Dataset() == ino.Dataset() && y.Part() == ino.Part(); i++ {
			if wanted(y) && !joins(y) {
				break
			}
			y += step
		}
	}
	return all
}

// read reads all files. It reads a file that cannot be read with the others by itself, with retries and error reports.
func (c *neighbours) read() {
	err := c.together()
	for _, x := range c.files {
		if err != nil || x.err != nil || compare(c.f.cfg.Files, &x.a, x.b) != nil {
			x.done(c.f.readThrough(PieceID{Ino: x.ino}, &x.a, x.b))
			continue
		}
		c.f.bad.forget(x.ino)
		c.f.readThroughs.Add(1)
		x.done(nil)
	}
}

// together reads the bytes of all files with one request. It sets err of each file that is damaged.
func (c *neighbours) together() error {
	first, last := c.files[0], c.files[len(c.files)-1]
	src, err := c.f.src.OpenArchive(first.from.Source)
	if err != nil {
		return err
	}
	p, err := c.f.bufs.In.Get(c.f.ctx)
	if err != nil {
		return src.Close(err)
	}
	defer p.Release()
	if err := p.Fill(src.Src, src.Name, first.begin(), last.end()-first.begin()); err != nil {
		return src.Close(err)
	}
	if first.from.Zip != (manifest.Zip{}) {
		c.unzip(p)
	} else {
		c.untar(p)
	}
	return src.Close(src.Unchanged())
}

func (c *neighbours) untar(p *source.Piece) {
	for _, x := range c.files {
		b := p.B[x.begin()-p.Off : x.end()-p.Off]
		if x.from.Head > 0 {
			x.err = tar.CheckHead(b[:x.from.Head], x.from.Off, x.from.Check)
		}
		copy(x.b, b[x.from.Head:])
	}
}

func (c *neighbours) unzip(p *source.Piece) {
	pieces := []*source.Piece{p.Hold()} // the reader releases it
	z := &archive.Unzipper{Ctx: c.f.ctx, Pool: c.f.bufs.Out, From: archive.BlockReader{
		Pos: p.Off, Queue: pieces, More: func() (*source.Piece, error) { return nil, io.ErrUnexpectedEOF },
	}}
	defer z.Close()
	for _, x := range c.files {
		it, n := archive.ZipItem(&x.from, x.a.Size), 0
		x.err = z.Member(it, x.end(), func() error {
			return z.Data(it, func(b []byte, _ *source.Piece) error {
				n += copy(x.b[n:], b)
				return nil
			})
		})
	}
}
