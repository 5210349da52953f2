package unpack

import (
	"io"
	"slices"
)

// feed is a reader of compressed bytes with lookahead and push-back.
type feed struct {
	in   *packed
	b    []byte // read but not used
	room []byte // the buffer of b
	err  error  // why there is nothing behind b
}

// feedStep is the minimal read size, in bytes.
const feedStep = 64 << 10

// need reads until b has n bytes, and reports whether it does.
func (f *feed) need(n int) bool {
	for len(f.b) < n && f.err == nil {
		if cap(f.b)-len(f.b) < feedStep {
			f.makeRoom(n)
		}
		var m int
		m, f.err = f.in.Read(f.b[len(f.b):cap(f.b)])
		f.b = f.b[:len(f.b)+m]
	}
	return len(f.b) >= n
}

// makeRoom moves b to the front of a buffer with as much space again.
func (f *feed) makeRoom(n int) {
	if want := 2 * (max(n, len(f.b)) + feedStep); cap(f.room) < want {
		f.room = make([]byte, 0, want)
	}
	f.b = append(f.room[:0], f.b...)
}

// short is the error for input that ends too early.
func (f *feed) short() error {
	if f.err != io.EOF {
		return f.err
	}
	return &DamageError{Off: f.offset() + int64(len(f.b)), Err: io.ErrUnexpectedEOF, Cut: true}
}

// take consumes n bytes of b.
func (f *feed) take(n int) { f.b = f.b[n:] }

// giveBack pushes back bytes in front of b.
func (f *feed) giveBack(b []byte) {
	f.b = slices.Concat(b, f.b)
	f.room = f.b[:0]
}

// offset is the position of b in the compressed file.
func (f *feed) offset() int64 { return f.in.off.Load() - int64(len(f.b)) }

// Read implements io.Reader.
func (f *feed) Read(p []byte) (int, error) {
	if len(f.b) == 0 {
		if f.err != nil {
			return 0, f.err
		}
		n, err := f.in.Read(p)
		f.err = err
		return n, err
	}
	n := copy(p, f.b)
	f.take(n)
	return n, nil
}
