package wire

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// FuzzMessages parses arbitrary bytes as every message. An accepted message must have exactly one encoding, which
// Append returns.
func FuzzMessages(f *testing.F) {
	kinds := messages()
	for i, m := range kinds {
		f.Add(uint8(i), Append(nil, m))
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		m := fresh(kinds[int(kind)%len(kinds)])
		before := bytes.Clone(b)
		err := Parse(b, m)
		if !bytes.Equal(b, before) {
			t.Fatalf("%T: Parse changed its input", m)
		}
		if err != nil {
			return
		}
		if got := Append(nil, m); !bytes.Equal(got, b) {
			t.Fatalf("%T: Append(Parse(%x)) = %x", m, b, got)
		}
	})
}

// FuzzHeader: an accepted header is within bounds and has exactly one encoding.
func FuzzHeader(f *testing.F) {
	f.Add(Header{Body: 5, Data: 7, Op: OpWrite, Tag: 3, Epoch: 9, Wait: 1}.Append(nil))
	f.Add(make([]byte, HeaderSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Header
		if h.Parse(b) != nil {
			return
		}
		if h.Body > MaxFrame || h.Data > h.Op.maxData() || h.Body+h.Data > MaxFrame {
			t.Fatalf("Parse accepts %+v", h)
		}
		if got := h.Append(nil); !bytes.Equal(got, b) {
			t.Fatalf("Append(Parse(%x)) = %x", b, got)
		}
	})
}

// FuzzHeaderFields gives every header a valid checksum, which random bytes lack.
func FuzzHeaderFields(f *testing.F) {
	f.Add(uint32(5), uint32(7), uint16(33), uint16(2), uint32(3), uint64(9), uint32(1), uint32(2))
	f.Fuzz(func(t *testing.T, body, data uint32, op, status uint16, tag uint32, epoch uint64, wait, sum uint32) {
		h := makeHeader(body, data, op, status, tag, epoch, wait, sum)
		var got Header
		err := got.Parse(h.Append(nil))
		fits := uint64(body)+uint64(data) <= MaxFrame && data <= Op(op).maxData()
		if fits != (err == nil) && uint64(body)+uint64(data) < 1<<32 {
			t.Fatalf("Parse of %+v = %v", h, err)
		}
		if err == nil && fits && got != h {
			t.Fatalf("got %+v, want %+v", got, h)
		}
	})
}

func makeHeader(body, data uint32, op, status uint16, tag uint32, epoch uint64, wait, sum uint32) Header {
	return Header{
		Body: body, Data: data, Op: Op(op), Status: syscall.Errno(status), Tag: tag,
		Epoch: metadata.Epoch(epoch), Wait: wait, Sum: sum,
	}
}

// FuzzChallengeHead must not accept a head that Challenge as a whole refuses.
func FuzzChallengeHead(f *testing.F) {
	f.Add(Append(nil, &Challenge{})[:ChallengeHead])
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := CheckChallengeHead(b)
		rest := make([]byte, ChallengeSize-ChallengeHead)
		if whole := Parse(append(bytes.Clone(b), rest...), new(Challenge)); (whole == nil) != (err == nil) {
			t.Fatalf("head %x: %v, whole: %v", b, err, whole)
		}
	})
}
