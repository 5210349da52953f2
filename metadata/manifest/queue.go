package manifest

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/bivouacfs/bivouac/metadata/varint"
)

// queue is a queue of strings that keeps only its two ends in memory.
type queue struct {
	s          *Scratch
	head, tail []byte   // whole strings, each with its length in front
	f          *os.File // the middle, in blocks with their length in front; nil if never needed
	off, end   int64    // of the file
}

func (q *queue) push(text string) error {
	n := len(q.tail)
	q.tail = appendText(q.tail, text)
	q.s.hold(len(q.tail) - n)
	if len(q.tail) < q.s.block() {
		return nil
	}
	if q.f == nil {
		f, err := q.s.file()
		if err != nil {
			return err
		}
		q.f = f
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(len(q.tail)))
	_, err := q.f.WriteAt(b, q.end)
	if err == nil {
		_, err = q.f.WriteAt(q.tail, q.end+int64(len(b)))
	}
	if err != nil {
		return fmt.Errorf("a queue: %w", err)
	}
	q.end += int64(len(b) + len(q.tail))
	q.s.hold(-len(q.tail))
	q.tail = q.tail[:0]
	return nil
}

// pop removes the first string; io.EOF if there is none.
func (q *queue) pop() (string, error) {
	if len(q.head) == 0 {
		if err := q.load(); err != nil {
			return "", err
		}
	}
	d := varint.Decoder{B: q.head}
	text := d.Text()
	q.s.hold(len(d.B) - len(q.head))
	q.head = d.B
	return text, nil
}

// load reads the next block into the head.
func (q *queue) load() error {
	switch {
	case q.off < q.end:
		return q.read()
	case len(q.tail) > 0:
		q.head, q.tail = q.tail, nil
		return nil
	}
	return io.EOF
}

func (q *queue) read() error {
	var n [4]byte
	_, err := q.f.ReadAt(n[:], q.off)
	b := make([]byte, binary.BigEndian.Uint32(n[:]))
	if err == nil {
		_, err = q.f.ReadAt(b, q.off+int64(len(n)))
	}
	if err != nil {
		return fmt.Errorf("a queue: %w", err)
	}
	q.s.hold(len(b))
	q.off += int64(len(n) + len(b))
	q.head = b
	return nil
}

func (q *queue) close() {
	q.s.hold(-len(q.head) - len(q.tail))
	q.head, q.tail = nil, nil
	if q.f != nil {
		_ = q.f.Close() // a temporary file
		q.f = nil
	}
}
