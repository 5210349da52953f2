package zip

import (
	"io"

	"github.com/klauspost/compress/flate"
)

// Inflater decompresses one deflated member after another.
type Inflater struct{ r io.ReadCloser }

// Reset starts on the data of in. It reads nothing beyond the end of the data if in is an io.ByteReader.
func (d *Inflater) Reset(in io.Reader) error {
	if d.r == nil {
		d.r = flate.NewReader(in)
		return nil
	}
	return d.r.(flate.Resetter).Reset(in, nil)
}

// Read implements io.Reader.
func (d *Inflater) Read(p []byte) (int, error) { return d.r.Read(p) }
