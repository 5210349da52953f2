package unpack

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// placesOf unpacks all of p and is where it can be begun with.
func placesOf(t testing.TB, kind source.Kind, p []byte, pool *source.Pool, apart int64) (Places, int64) {
	t.Helper()
	ctx := context.Background()
	u := UnpackPlaces(ctx, kind, nil, source.ReadRegion(ctx, bytes.NewReader(p), "f", 0, int64(len(p)), pool, 4), pool, Spacing{Apart: apart})
	defer u.Close()
	for {
		piece, err := u.Next()
		if err == io.EOF {
			return u.Places(), u.Way(0)
		}
		if err != nil {
			t.Fatal(err)
		}
		piece.Release()
	}
}

// unpacked is the bytes of a stretch, as its places give them.
func (s *Stretch) unpacked(t testing.TB, in, out *source.Pool) []byte {
	t.Helper()
	u := s.Unpack(context.Background(), in, out)
	if u == nil {
		t.Fatalf("no place before %d", s.Off)
	}
	defer u.Close()
	var got []byte
	for at := s.Off; at < s.End; {
		p, err := u.Next()
		if err != nil {
			t.Fatalf("[%d, %d) at %d: %v", s.Off, s.End, at, err)
		}
		if p.Off > at {
			t.Fatalf("[%d, %d): a piece at %d, want one with %d", s.Off, s.End, p.Off, at)
		}
		if p.End() > at {
			got = append(got, p.B[at-p.Off:min(p.End(), s.End)-p.Off]...)
			at = min(p.End(), s.End)
		}
		p.Release()
	}
	return got
}

// TestStretch: from its places, any part of what a file unpacks to comes as it does when
// all of it is unpacked, with one processor and with several.
func TestStretch(t *testing.T) {
	for _, w := range packedWays {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(23, 24))
			pool, size := source.NewPool(64, 1024), 150_000
			data := mixedBytes(r, size)
			p := w.pack(t, data, r)
			for _, help := range []int{1, 3} {
				pool.Help = make(chan struct{}, help)
				places, way := placesOf(t, w.kind, p, pool, 1)
				one := w.name == "zstd" || w.name == "xz" && len(places) == 1
				if len(places) == 0 || len(places) == 1 != one || !one && way > int64(size/2) {
					t.Fatalf("%d places, up to %d bytes apart", len(places), way)
				}
				back, err := ParsePlaces(places.Append(nil))
				if err != nil || !slices.Equal(back, places) {
					t.Fatalf("%v, %v, want %v", back, err, places)
				}
				for range 60 {
					off := r.IntN(size)
					n := 1 + r.IntN(min(30_000, size-off))
					s := Stretch{File: bytes.NewReader(p), Name: "f", Kind: w.kind, Size: int64(len(p)), Places: places, Off: int64(off), End: int64(off + n)}
					if got := s.unpacked(t, pool, source.NewPool(8, 1024)); !bytes.Equal(got, data[off:off+n]) {
						t.Fatalf("[%d, %d) is not what it was", off, off+n)
					}
				}
				for i, x := range places { // just at one, and just before it
					if x.Off == 0 || x.Off >= int64(size) {
						continue
					}
					s := Stretch{File: bytes.NewReader(p), Name: "f", Kind: w.kind, Size: int64(len(p)), Places: places, Off: x.Off - 1, End: x.Off + 1}
					if got := s.unpacked(t, pool, source.NewPool(8, 1024)); !bytes.Equal(got, data[s.Off:s.End]) {
						t.Fatalf("the bytes around place %d are not what they were", i)
					}
				}
			}
			if pool.Out() != 0 {
				t.Errorf("%d buffers are out", pool.Out())
			}
		})
	}
}

// TestPlacesAreBounded: however many there are, what is kept of them is less than a MiB,
// and they are as far apart as was asked.
func TestPlacesAreBounded(t *testing.T) {
	l := placeList{Spacing: Spacing{Apart: 100}}
	for i := range int64(5 * placeMost) {
		l.see(Start{Place: Place{At: i << 30, Off: i * 50}})
	}
	if b := l.all.Append(nil); len(l.all) > placeMost || len(b) > 1<<20 || len(l.all) < placeMost/4 {
		t.Errorf("%d places of %d bytes", len(l.all), len(b))
	}
	for i := 1; i < len(l.all); i++ {
		if d := l.all[i].Off - l.all[i-1].Off; d < 100 || d > 2*l.Apart {
			t.Fatalf("%d bytes between two, want %d", d, l.Apart)
		}
	}
	if l.gap < 100 || l.gap > 2*l.Apart {
		t.Errorf("gap = %d", l.gap)
	}
}

// FuzzPlaces: what parses is in order, and is written as it was.
func FuzzPlaces(f *testing.F) {
	f.Add(Places{{}, {At: 1000, Off: 5000}, {At: 3000, Off: 90_000}, {3001, 90_050, 7, "window"}}.Append(nil))
	f.Add([]byte{0, 0, 0, 1})
	f.Add(bytes.Repeat([]byte{0xff}, 20))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := ParsePlaces(b)
		if err != nil {
			return
		}
		for i := 1; i < len(all); i++ {
			if all[i].At <= all[i-1].At || all[i].Off <= all[i-1].Off {
				t.Fatalf("%v after %v", all[i], all[i-1])
			}
		}
		if back, err := ParsePlaces(all.Append(nil)); err != nil || !slices.Equal(back, all) {
			t.Fatalf("%v, %v, want %v", back, err, all)
		}
	})
}

// TestCuts: what lies between two places has a number, up to the end of the file if that is known.
func TestCuts(t *testing.T) {
	ps := Places{{}, {At: 50, Off: 100}, {At: 90, Off: 300}}
	for _, c := range []struct {
		ps         Places
		off        int64
		i          int
		begin, end int64
		ok         bool
	}{
		{ps, 0, 0, 0, 100, true}, {ps, 99, 0, 0, 100, true}, {ps, 100, 1, 100, 300, true}, {ps, 300, 0, 0, 0, false},
		{ps.End(source.TarZstd, 120, 310), 309, 2, 300, 310, true}, {ps.End(source.TarZstd, 120, 310), 310, 0, 0, 0, false},
		{ps.End(source.TarZstd, 120, 300), 300, 0, 0, 0, false}, {Places{}.End(source.TarZstd, 120, 300), 0, 0, 0, 0, false}, {nil, 5, 0, 0, 0, false},
	} {
		if i, begin, end, ok := c.ps.Cut(c.off); i != c.i || begin != c.begin || end != c.end || ok != c.ok {
			t.Errorf("%v.Cut(%d) = %d, %d, %d, %v, want %d, %d, %d, %v", c.ps, c.off, i, begin, end, ok, c.i, c.begin, c.end, c.ok)
		}
	}
	if at, _ := ps.End(source.TarXz, 120, 310)[3].xz(); at != 120 {
		t.Errorf("the end of a file of xz is at %d, want 120", at)
	}
}
