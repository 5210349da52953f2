package stagein

import (
	"errors"
	"io"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// tape is consecutive pieces of an archive as one stream. No block lies in two
// pieces, but for the last of the archive, which may be short.
type tape struct {
	queue []*source.Piece // what comes before more
	more  func() (*source.Piece, error)
	waits func()        // if not nil, is called before more
	cur   *source.Piece // held; nil at the start
	at    int           // of cur
	pos   int64         // in the archive
	bad   error         // of more
}

// fill makes sure that there is a byte in cur; io.EOF at the end.
func (t *tape) fill() error {
	for t.cur == nil || t.at == len(t.cur.B) {
		next, err := t.pull()
		if err != nil {
			return err
		}
		t.drop()
		if next.End() <= t.pos {
			next.Release() // lies before the start
			continue
		}
		t.cur, t.at = next, int(max(t.pos-next.Off, 0))
	}
	return nil
}

func (t *tape) pull() (*source.Piece, error) {
	if len(t.queue) == 0 {
		if t.bad != nil {
			return nil, t.bad // what comes behind a gap is not what comes next
		}
		t.wait()
		p, err := t.more()
		t.bad = err
		return p, err
	}
	p := t.queue[0]
	t.queue = t.queue[1:]
	return p, nil
}

// wait is for who is about to wait for what comes, or for a buffer.
func (t *tape) wait() {
	if t.waits != nil {
		t.waits()
	}
}

func (t *tape) drop() {
	if t.cur != nil {
		t.cur.Release()
		t.cur, t.at = nil, 0
	}
}

// close releases all that the tape holds.
func (t *tape) close() {
	t.drop()
	for _, p := range t.queue {
		p.Release()
	}
	t.queue = nil
}

// take returns at most n bytes, and the piece that they are in.
func (t *tape) take(n int64) ([]byte, *source.Piece, error) {
	if err := t.fill(); err != nil {
		return nil, nil, err
	}
	b := t.cur.B[t.at:]
	b = b[:min(int64(len(b)), n)]
	t.at += len(b)
	t.pos += int64(len(b))
	return b, t.cur, nil
}

// block returns the next block; short if the archive ends inside it.
func (t *tape) block() ([]byte, error) {
	b, _, err := t.take(source.BlockSize)
	return b, err
}

// skip goes over n bytes.
func (t *tape) skip(n int64) error {
	for n > 0 {
		b, _, err := t.take(n)
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
