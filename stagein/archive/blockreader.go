package archive

import (
	"errors"
	"io"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// BlockReader reads consecutive pieces of an archive as one stream. No block spans two pieces; the archive's last block
// may be short.
type BlockReader struct {
	Queue []*source.Piece // read before More
	More  func() (*source.Piece, error)
	Waits func()        // called before More, if not nil
	cur   *source.Piece // held; nil at the start
	at    int           // offset in cur
	Pos   int64         // offset in the archive
	bad   error         // error of More
}

// fill makes sure that cur has an unread byte. It returns io.EOF at the end.
func (t *BlockReader) fill() error {
	for t.cur == nil || t.at == len(t.cur.B) {
		next, err := t.pull()
		if err != nil {
			return err
		}
		t.drop()
		if next.End() <= t.Pos {
			next.Release() // it ends before Pos
			continue
		}
		t.cur, t.at = next, int(max(t.Pos-next.Off, 0))
	}
	return nil
}

func (t *BlockReader) pull() (*source.Piece, error) {
	if len(t.Queue) == 0 {
		if t.bad != nil {
			return nil, t.bad // data after a gap must not be taken for the next bytes
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

// wait must be called before each wait for a piece or a buffer.
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

// Close releases the held pieces.
func (t *BlockReader) Close() {
	t.drop()
	for _, p := range t.Queue {
		p.Release()
	}
	t.Queue = nil
}

// Take returns at most n bytes and the piece that holds them.
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

// Skip discards n bytes.
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

// ReleaseAll releases pieces.
func ReleaseAll(held []*source.Piece) {
	for _, p := range held {
		p.Release()
	}
}
