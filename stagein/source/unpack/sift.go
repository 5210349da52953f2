package unpack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"

	"github.com/klauspost/compress/flate"
)

// windowMost is how far back deflated data refer, in bytes.
const windowMost = 32 << 10

// sift blanks what of a window is not used by the deflated data that follow it from a bit on; it
// is most of it, unless that packs very well. Where data is too short to tell, nothing is
// blanked.
//
// A byte is used that some byte of what comes out is a copy of. Which one that is shows when other
// windows stand in its place, that have at each position what says its number: only copies of
// the window differ with them, and they are the number.
func sift(window, data []byte, bit uint8) []byte {
	stand := make([]byte, len(window))
	var out [3][]byte
	for k, number := range []func(i int) byte{
		func(i int) byte { return byte(i) }, func(i int) byte { return ^byte(i) }, func(i int) byte { return byte(i >> 8) },
	} {
		for i := range stand {
			stand[i] = number(i)
		}
		var ok bool
		if out[k], ok = nearest(stand, data, bit); !ok || len(out[k]) != len(out[0]) {
			return window
		}
	}
	used := make([]byte, len(window))
	for i, low := range out[0] {
		if low != out[1][i] {
			at := int(low) | int(out[2][i])<<8
			used[at] = window[at]
		}
	}
	return used
}

// nearest is all of what data unpacks to behind a window that can refer to it; false if it is
// too short.
func nearest(window, data []byte, bit uint8) ([]byte, bool) {
	r := flate.NewReaderOpts(bytes.NewReader(data), flate.WithResumeFrom(flate.InflateCheckpoint{BitOffset: bit, Window: window}))
	b := make([]byte, windowMost)
	n, err := fill(b, r)
	return b[:n], err == nil || err == io.EOF
}

// packers make windows small.
var packers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.DefaultCompression) // the level is right
	return w
}}

func packWindow(b []byte) string {
	var out strings.Builder
	w := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&out)
	_, _ = w.Write(b) // out takes all
	_ = w.Close()
	return out.String()
}

// window is what packWindow was given.
func (p Place) window() ([]byte, error) {
	b := make([]byte, windowMost+1)
	n, err := fill(b, flate.NewReader(strings.NewReader(p.Window)))
	if n > windowMost {
		err = errors.New("is too long")
	}
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("what lies before the place at %d in a compressed file: %v: %w", p.Off, err, syscall.EPROTO)
	}
	return b[:n], nil
}
