package archive

import (
	"errors"
	"io"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// BlockReader is consecutive pieces of an archive as one stream. No block lies in two
// pieces, but for the last of the archive, which may be short.
type BlockReader struct {
	Queue []*source.Piece // what comes before more
	More  func() (*source.Piece, error)
	Waits func()        // if not nil, is called before more
	cur   *source.Piece // held; nil at the start
	at    int           // of cur
	Pos   int64         // in the archive
	bad   error         // of more
}

// fill makes sure that there is a byte in cur; io.EOF at the end.
func (t *BlockReader) fill() error {
	for t.cur == nil || t.at == len(t.cur.B) {
		next, err := t.pull()
		if err != nil {
			return err
		}
		t.drop()
		if next.End() <= t.Pos {
			next.Release() // lies before the start
			continue
		}
		t.cur, t.at = next, int(max(t.Pos-next.Off, 0))
	}
	return nil
}

func (t *BlockReader) pull() (*source.Piece, error) {
	if len(t.Queue) == 0 {
		if t.bad != nil {
			return nil, t.bad // what comes behind a gap is not what comes next
		}
		t.wait()
		p, err := t.More()
		t.bad = err
		return p, err
	}
	p := t.Queue[0]
	t.Queue = t.Queue[1:]
	return p, nil
}

// wait is for who is about to wait for what comes, or for a buffer.
func (t *BlockReader) wait() {
	if t.Waits != nil {
		t.Waits()
	}
}

func (t *BlockReader) drop() {
	if t.cur != nil {
		t.cur.Release()
		t.cur, t.at = nil, 0
	}
}

// Close releases all that the tape holds.
func (t *BlockReader) Close() {
	t.drop()
	for _, p := range t.Queue {
		p.Release()
	}
	t.Queue = nil
}

// Take returns at most n bytes, and the piece that they are in.
func (t *BlockReader) Take(n int64) ([]byte, *source.Piece, error) {
	if err := t.fill(); err != nil {
		return nil, nil, err
	}
	b := t.cur.B[t.at:]
	b = b[:min(int64(len(b)), n)]
	t.at += len(b)
	t.Pos += int64(len(b))
	return b, t.cur, nil
}

// Block returns the next block; short if the archive ends inside it.
func (t *BlockReader) Block() ([]byte, error) {
	b, _, err := t.Take(source.BlockSize)
	return b, err
}

// Skip goes over n bytes.
func (t *BlockReader) Skip(n int64) error {
	for n > 0 {
		b, _, err := t.Take(n)
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		n -= int64(len(b))
	}
	return nil
}

func ReleaseAll(held []*source.Piece) {
	for _, p := range held {
		p.Release()
	}
}
