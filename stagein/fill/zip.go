package fill

import (
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// unzip reads neighbours in a zip archive. It leaves a damaged member to its owner.
func (c *transfer) unzip(src *archive.Content, begin, end int64) error {
	from := source.ReadRegion(c.f.ctx, src.Src, src.Name, begin, end, c.f.bufs.In, archive.ReadAhead)
	defer from.Close()
	z := &archive.Unzipper{Ctx: c.f.ctx, Pool: c.f.bufs.Out, From: archive.BlockReader{Pos: begin, More: from.Next, Waits: c.flush}}
	defer z.Close()
	for _, x := range c.items {
		it, at := x.item(), x.at
		x.direct = x.n > wire.MaxData // a compressed one is small
		err := z.Member(it, x.end(), func() error {
			return z.Data(it, func(b []byte, p *source.Piece) error {
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
	return src.Unchanged()
}
