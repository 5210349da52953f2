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
	base uint16 // of the part, the same in every try

	mu  sync.Mutex
	w   *manifest.Writer // guarded by mu
	out io.Writer        // destination of w
	n   uint64           // guarded by mu; number of records
	seq uint64           // guarded by mu
}

// NewRecorder returns the recorder of a part of p, which writes to w, encoded by manifest.Writer.
func NewRecorder(p *Plan, part Part, w io.Writer) *Recorder {
	return &Recorder{ds: p.Dataset, part: uint16(part.Number(len(p.Parts))), base: part.Index, w: manifest.NewWriter(w), out: w}
}

// Across returns the inode of the member, at most one, that begins in this region of a tar and continues in the next.
// It is the same in every try, because nodes of later regions may already have stored their parts of it.
func (r *Recorder) Across() metadata.Ino { return metadata.SealedIno(r.ds, r.base, 0) }

// Ino returns the next inode. Numbers begin at 1; 0 is used by Across.
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

// Skip writes a line about an entry that is left out.
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

// Flush flushes all records, and returns their number and the try with the last inode number.
func (r *Recorder) Flush() (records uint64, try Try, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err = r.w.Flush()
	if f, ok := r.out.(interface{ Flush() error }); ok && err == nil {
		err = f.Flush()
	}
	return r.n, Try{r.part, uint32(min(r.seq, math.MaxUint32))}, err
}
