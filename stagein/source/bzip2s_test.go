package source

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestBzip2Blocks has several blocks in a stream, at all bits, and some damage.
func TestBzip2Blocks(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 14))
	data := append(mixedBytes(r, 350_000), make([]byte, 300_000)...) // of which a block takes very much
	pack := program("bzip2", "-1")
	p := append(pack(t, data, r), pack(t, data, r)...)
	if got, err := bothWays(t, TarBzip2, p); err != nil || !bytes.Equal(got, slices.Concat(data, data)) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	for i := range 25 {
		spoilt := slices.Clone(p)
		if i%2 == 0 {
			spoilt = spoilt[:1+r.IntN(len(p)-1)]
		} else {
			spoilt[r.IntN(len(p))] ^= 1 << r.IntN(8)
		}
		_, _ = bothWays(t, TarBzip2, spoilt) // compares
	}
}

// TestBzip2Sum: blocks that are right, each for itself.
func TestBzip2Sum(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 15))
	p := program("bzip2", "-1")(t, mixedBytes(r, 250_000), r)
	p[len(p)-3] ^= 1 // of the checksum of all blocks, whatever bit it begins at
	if got, err := bothWays(t, TarBzip2, p); err == nil || len(got) != 250_000 {
		t.Errorf("%d bytes, %v; want an error after all", len(got), err)
	}
}

// fooled is bzip2s that takes bits in the middle of every block for a mark.
type fooled struct{ *bzip2s }

func (z fooled) cut(f *feed, b *batch) error {
	past := z.at.past
	err := z.bzip2s.cut(f, b)
	if k := &b.block; err == nil && !k.last && past == 0 {
		was := slices.Clone(b.raw[:k.end/8])
		f.giveBack(was)
		k.end = (k.from + k.end) / 2
		b.raw = b.raw[:(k.end+7)/8]
		f.take(k.end / 8)
		z.at = bzPlace{bit: k.end % 8, level: k.level}
	}
	return err
}

// TestBzip2FalseMarks: a block with a mark in it is unpacked up to the next.
func TestBzip2FalseMarks(t *testing.T) {
	r := rand.New(rand.NewPCG(16, 16))
	data := append(mixedBytes(r, 250_000), make([]byte, 4_000_000)...)
	p := program("bzip2", "-1")(t, data, r)
	pool := NewPool(8, 1024)
	in := compressed(context.Background(), p, pool)
	d := newBatches(context.Background(), in, fooled{&bzip2s{sizes: small}}, make(chan struct{}, 3))
	in.ahead = d.ahead
	if got, err := all(in, d); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	in.release()
	in.from.Close()
}

// TestFindMark against looking at every bit.
func TestFindMark(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 17))
	for range 3000 {
		b := randomBytes(r, 8+r.IntN(40))
		for range r.IntN(3) {
			mark := []uint64{bzBlockMark, bzEndMark}[r.IntN(2)]
			at := r.IntN(8*len(b) - bzMark)
			for i := range bzMark {
				if bit := byte(0x80 >> ((at + i) % 8)); mark>>(bzMark-1-i)&1 != 0 {
					b[(at+i)/8] |= bit
				} else {
					b[(at+i)/8] &^= bit
				}
			}
		}
		from, want := r.IntN(8*len(b)), -1
		for at := from; at+bzMark <= 8*len(b) && want < 0; at++ {
			if v := bitsAt(b, at, bzMark); v == bzBlockMark || v == bzEndMark {
				want = at
			}
		}
		if got := findMark(b, from); got != want {
			t.Fatalf("findMark(%x, %d) = %d, want %d", b, from, got, want)
		}
	}
}
