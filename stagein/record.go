package stagein

import (
	"fmt"
	"io"
	"math"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// Recorder writes the records of a part and numbers its inodes.
type Recorder struct {
	ds   metadata.DatasetID
	part uint16
	base uint16 // part, whichever try it is

	mu  sync.Mutex
	w   *manifest.Writer // guarded by mu
	out io.Writer        // what w writes to
	n   uint64           // guarded by mu; records
	seq uint64           // guarded by mu
}

// NewRecorder makes the recorder of a part of p, which writes to w as manifest.Writer encodes records.
func NewRecorder(p *Plan, part Part, w io.Writer) *Recorder {
	return &Recorder{ds: p.Dataset, part: uint16(part.Number(len(p.Parts))), base: part.Index, w: manifest.NewWriter(w), out: w}
}

// Across returns the inode of the member that begins in this region of a tar and goes on in the next one. There is at most
// one. It is the same in every try, as nodes of later regions may have stored their parts of it already.
func (r *Recorder) Across() metadata.Ino { return metadata.SealedIno(r.ds, r.base, 0) }

// Ino returns the next inode. Numbers begin at 1; 0 is that of Across.
func (r *Recorder) Ino() (metadata.Ino, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seq >= math.MaxUint32 {
		return 0, fmt.Errorf("more than %d entries in one part: %w", r.seq, syscall.EOVERFLOW)
	}
	r.seq++
	return metadata.SealedIno(r.ds, r.part, uint32(r.seq)), nil
}

// Add writes a record.
func (r *Recorder) Add(rec manifest.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	return r.w.Add(rec)
}

// Skip writes a line about something that is left out.
func (r *Recorder) Skip(w io.Writer, line []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := w.Write(line)
	return err
}

// Close ends the records.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.w.Close()
}

// Flush writes out all records, and returns how many there are, and the try with the last inode number.
func (r *Recorder) Flush() (records uint64, try Try, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err = r.w.Flush()
	if f, ok := r.out.(interface{ Flush() error }); ok && err == nil {
		err = f.Flush()
	}
	return r.n, Try{r.part, uint32(min(r.seq, math.MaxUint32))}, err
}
