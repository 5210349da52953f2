package unpack

import (
	"io"

	"github.com/klauspost/compress/gzip"
)

// byteSource is a reader for which gzip needs no buffer of its own.
type byteSource interface {
	io.Reader
	io.ByteScanner
}

// gunzip decodes member after member. Unlike gzip.Reader it reports a file that ends within the name in a header.
type gunzip struct {
	in    byteSource
	z     gzip.Reader
	inOne bool
}

// Read implements io.Reader.
func (g *gunzip) Read(p []byte) (n int, err error) {
	for n == 0 && err == nil && len(p) > 0 {
		if !g.inOne {
			if err := g.begin(); err != nil {
				return 0, err
			}
		}
		if n, err = g.z.Read(p); err == io.EOF {
			g.inOne, err = false, nil
		}
	}
	return n, err
}

// begin starts the next member, or returns io.EOF if there is none.
func (g *gunzip) begin() error {
	if _, err := g.in.ReadByte(); err != nil {
		return err
	}
	if err := g.in.UnreadByte(); err != nil {
		return err
	}
	err := g.z.Reset(g.in)
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	g.z.Multistream(false)
	g.inOne = true
	return err
}
