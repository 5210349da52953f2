package manifest

import (
	"io"
	"os"
	"sync"
)

// Spool stores records in order, all but one block of them in a file. The spools of a Scratch share a file. A Spool is
// not safe for concurrent use.
type Spool struct {
	s     *Scratch
	f     *os.File // nil before the first record
	w     *Writer  // nil once the spool has been read
	parts []extent // ranges of the file, in order
}

// spoolBlock is smaller than the blocks of other streams, because there may be some hundred spools.
const spoolBlock = 16 << 10

// extent is the range [off, end) of a file.
type extent struct{ off, end int64 }

// Spool returns an empty spool, which must be closed.
func (s *Scratch) Spool() *Spool { return &Spool{s: s} }

// Add appends r.
func (p *Spool) Add(r Record) error {
	if p.f == nil {
		f, err := p.s.shared.open(p.s)
		if err != nil {
			return err
		}
		p.f = f
		p.w = newWriter(spoolFile{p}, spoolBlock)
		p.s.hold(spoolBlock)
	}
	return p.w.Add(r)
}

// spoolFile writes to the file of a Spool.
type spoolFile struct{ p *Spool }

func (w spoolFile) Write(b []byte) (int, error) {
	p, n := w.p, int64(len(b))
	off := p.s.shared.take(n)
	if last := len(p.parts) - 1; last >= 0 && p.parts[last].end == off {
		p.parts[last].end += n
	} else {
		p.parts = append(p.parts, extent{off, off + n})
	}
	return p.f.WriteAt(b, off)
}

// Read returns a reader of all records. It may be called again, but Add may not be called afterwards.
func (p *Spool) Read() (*Reader, error) {
	if p.w != nil {
		if err := p.w.Close(); err != nil {
			return nil, err
		}
		p.w = nil
		p.s.hold(-spoolBlock)
	}
	parts := make([]io.Reader, len(p.parts))
	for i, e := range p.parts {
		parts[i] = io.NewSectionReader(p.f, e.off, e.end-e.off)
	}
	return NewReader(io.MultiReader(parts...)), nil
}

// Each calls fn with all records, in the order of Read.
func (p *Spool) Each(fn func(Record) error) error {
	r, err := p.Read()
	if err != nil || p.f == nil {
		return err
	}
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = fn(rec)
		}
		if err != nil {
			return err
		}
	}
}

// Close releases the space. It may be called again.
func (p *Spool) Close() {
	if p.f == nil {
		return
	}
	if p.w != nil {
		p.w = nil
		p.s.hold(-spoolBlock)
	}
	p.f, p.parts = nil, nil
	p.s.shared.close()
}

// sharedFile is a file that exists as long as it has users.
type sharedFile struct {
	mu    sync.Mutex
	f     *os.File // guarded by mu
	users int      // guarded by mu
	end   int64    // guarded by mu; end of the used space
}

func (x *sharedFile) open(s *Scratch) (*os.File, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.users == 0 {
		f, err := s.file()
		if err != nil {
			return nil, err
		}
		x.f, x.end = f, 0
	}
	x.users++
	return x.f, nil
}

// take reserves n bytes.
func (x *sharedFile) take(n int64) int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.end += n
	return x.end - n
}

func (x *sharedFile) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.users--; x.users == 0 {
		_ = x.f.Close() // a temporary file
		x.f = nil
	}
}
