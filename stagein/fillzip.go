package stagein

import (
	"context"
	"fmt"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/zip"
)

// listZips reads the central directories of zip archives; false if one has a member
// that would be striped: its pieces cannot be unpacked one by one.
func (cfg *PlanConfig) listZips(ctx context.Context, all []archiveScan) (bool, error) {
	err := each(ctx, all, func(ctx context.Context, a *archiveScan) error {
		if a.found.Kind != source.Zip {
			return nil
		}
		h, err := a.open(cfg)
		if err != nil {
			return err
		}
		return a.end(h, a.directory(ctx, h))
	})
	for i := range all {
		members, _ := all[i].items.(itemSlice)
		for k := range members {
			if it := &members[k]; it.Zip != (source.ZipMember{}) && it.Size > cfg.Stripe {
				return false, err
			}
		}
	}
	return true, err
}

// directory lists the members of a zip archive, with where its symbolic links
// point to.
func (a *archiveScan) directory(ctx context.Context, h *hopper) error {
	file := counted{h.f, &h.read}
	x, err := zip.Read(file, h.name, h.size, a.found.Head, func(member string, _ error) bool { return h.sel.Leaves(member) })
	if err != nil {
		return err
	}
	pool := source.NewPool(4, source.MaxTarget+3<<16) // a link and what stands around it, twice
	for i := range x.Items {
		if it := &x.Items[i]; it.Is(source.TypeSymlink) {
			s := &stretch{file: file, name: h.name}
			err := s.unzip(ctx, pools{pool, pool}, it, func(z *unzipper) error { return z.target(it) })
			if err != nil {
				return fmt.Errorf("%s: member %q at offset %d: %w", h.name, it.Path, it.Off, err)
			}
		}
	}
	a.items = itemSlice(x.Items)
	return nil
}

// zipOrigin is where an item of the zip archive n is.
func zipOrigin(it *source.Item, n uint32) manifest.Origin {
	return manifest.Origin{
		Source: n, Off: it.Off + zip.LocalSize, Head: zip.LocalSize, Check: uint64(it.Zip.CRC)<<32 | uint64(it.Zip.Name),
		Zip: manifest.Zip{Span: it.Zip.Span, Packed: it.Zip.Size, Method: it.Zip.Method},
	}
}

// zipItem is the item that is there, of a file of size bytes.
func zipItem(from *manifest.Origin, size int64) *source.Item {
	return &source.Item{Mode: source.TypeRegular, Size: size, Off: from.Off - zip.LocalSize, Zip: source.ZipMember{
		Size: from.Zip.Packed, Method: from.Zip.Method, CRC: uint32(from.Check >> 32), Name: uint32(from.Check), Span: from.Zip.Span,
	}}
}

// pools is the buffers for what is read, and those for what is unpacked. They are
// apart, since who unpacks holds some of one while it waits for the other.
type pools struct{ in, out *source.Pool }

func newPools(n, size int) pools {
	return pools{source.NewPool(n, size), source.NewPool(max(n/2, minPieces), size)}
}

// unzip has do read the data of a member of the archive.
func (s *stretch) unzip(ctx context.Context, p pools, it *source.Item, do func(z *unzipper) error) error {
	end := it.Off + zip.LocalSize + it.Zip.Span
	from := source.ReadRegion(ctx, s.file, s.name, it.Off, end, p.in, readAhead)
	defer from.Close()
	z := &unzipper{ctx: ctx, pool: p.out, t: tape{pos: it.Off, more: from.Next}}
	defer z.close()
	return z.member(it, end, func() error { return do(z) })
}

// unpacked gives the bytes [pos, pos+n) of a member to do.
func (s *stretch) unpacked(ctx context.Context, p pools, pos, n int64, do func(b []byte, pos int64) error) error {
	at := int64(0)
	err := s.unzip(ctx, p, s.member, func(z *unzipper) error {
		return z.data(s.member, func(b []byte, _ *source.Piece) error {
			from, end := max(at, pos), min(at+int64(len(b)), pos+n)
			begin := at
			at += int64(len(b))
			if from >= end {
				return nil
			}
			return do(b[from-begin:end-begin], from)
		})
	})
	if err != nil {
		return fmt.Errorf("%s: at offset %d: %w", s.name, s.member.Off, err)
	}
	return s.same()
}

// unzip brings neighbours in a zip archive. One that is damaged is left to who is
// to have it.
func (c *carrier) unzip(src *stretch, begin, end int64) error {
	from := source.ReadRegion(c.f.ctx, src.file, src.name, begin, end, c.f.bufs.in, readAhead)
	defer from.Close()
	z := &unzipper{ctx: c.f.ctx, pool: c.f.bufs.out, t: tape{pos: begin, more: from.Next, waits: c.flush}}
	defer z.close()
	for _, x := range c.parcels {
		it, at := x.item(), x.at
		x.alone = x.n > wire.MaxData // it is small when it is packed
		err := z.member(it, x.end(), func() error {
			return z.data(it, func(b []byte, p *source.Piece) error {
				c.put(x, p, at, b)
				at += int64(len(b))
				return nil
			})
		})
		if err != nil {
			c.fail(x, err)
		}
		x.read = err == nil
	}
	return src.same()
}
