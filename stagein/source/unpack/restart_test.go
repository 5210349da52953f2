package unpack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// pointsOf unpacks all of p and returns its restart points, and the most bytes between two of them.
func pointsOf(t testing.TB, kind source.Kind, p []byte, pool *source.Pool, apart int64) (points RestartPoints, gap int64) {
	t.Helper()
	ctx := context.Background()
	u := OpenWithPoints(ctx, kind, nil, source.ReadRegion(ctx, bytes.NewReader(p), "f", 0, int64(len(p)), pool, 4), pool, apart)
	defer u.Close()
	for {
		piece, err := u.Next()
		if err == io.EOF {
			points = u.RestartPoints()
			for i := 1; i < len(points); i++ {
				gap = max(gap, points[i].Off-points[i-1].Off)
			}
			return points, gap
		}
		if err != nil {
			t.Fatal(err)
		}
		piece.Release()
	}
}

// unpacked is the bytes of a stretch, unpacked from the restart point before it.
func (s *Range) unpacked(t testing.TB, in, out *source.Pool) []byte {
	t.Helper()
	u := s.Open(context.Background(), in, out)
	if u == nil {
		t.Fatalf("no restart point before %d", s.Off)
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

// TestStretch: any part of what a file unpacks to, unpacked from a restart point, is what it is when
// the file is unpacked as a whole, with one processor and with several.
func TestRange(t *testing.T) {
	for _, w := range packers {
		if !HasRestartPoints(w.kind) {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(23, 24))
			pool, size := source.NewPool(64, 1024), 100_000
			data := mixedBytes(r, size)
			p := w.pack(t, data, r)
			for _, help := range []int{1, 3} {
				pool.Help = make(chan struct{}, help)
				points, gap := pointsOf(t, w.kind, p, pool, 1)
				one := w.name == "zstd" || w.name == "gzip" || w.name == "xz" && len(points) == 1
				if len(points) == 0 || len(points) == 1 != one || !one && gap > int64(size/2) {
					t.Fatalf("%d restart points, up to %d bytes apart", len(points), gap)
				}
				back, err := ParseRestartPoints(points.Append(nil))
				if err != nil || !slices.Equal(back, points) {
					t.Fatalf("%v, %v, want %v", back, err, points)
				}
				for range 20 {
					off := r.IntN(size)
					n := 1 + r.IntN(min(30_000, size-off))
					s := Range{File: bytes.NewReader(p), Name: "f", Kind: w.kind, Size: int64(len(p)), Points: points, Off: int64(off), End: int64(off + n)}
					if got := s.unpacked(t, pool, source.NewPool(8, 1024)); !bytes.Equal(got, data[off:off+n]) {
						t.Fatalf("[%d, %d) is not what it was", off, off+n)
					}
				}
				for i, x := range points { // just at one, and just before it
					if i%(len(points)/40+1) != 0 || x.Off == 0 || x.Off >= int64(size) {
						continue
					}
					s := Range{File: bytes.NewReader(p), Name: "f", Kind: w.kind, Size: int64(len(p)), Points: points, Off: x.Off - 1, End: x.Off + 1}
					if got := s.unpacked(t, pool, source.NewPool(8, 1024)); !bytes.Equal(got, data[s.Off:s.End]) {
						t.Fatalf("the bytes around restart point %d are not what they were", i)
					}
				}
			}
			if pool.Out() != 0 {
				t.Errorf("%d buffers are out", pool.Out())
			}
		})
	}
}

// TestRestartPointsAreBounded: however many there are, the encoding of those that are kept is less than a MiB,
// and they are as far apart as was asked.
func TestRestartPointsAreBounded(t *testing.T) {
	l := newPointList(100)
	for i := range int64(5 * maxPoints) {
		l.see(RestartPoint{At: i << 30, Off: i * 50})
	}
	if b := l.all.Append(nil); len(l.all) > maxPoints || len(b) > 1<<20 || len(l.all) < maxPoints/4 {
		t.Errorf("%d restart points of %d bytes", len(l.all), len(b))
	}
	for i := 1; i < len(l.all); i++ {
		if d := l.all[i].Off - l.all[i-1].Off; d < 100 || d > 2*l.apart {
			t.Fatalf("%d bytes between two, want %d", d, l.apart)
		}
	}
}

// FuzzRestartPoints: points that parse are in order, and are encoded as they were.
func FuzzRestartPoints(f *testing.F) {
	f.Add(RestartPoints{{}, {At: 1000, Off: 5000}, {At: 3000, Off: 90_000}}.Append(nil))
	f.Add([]byte{0, 0, 0, 1})
	f.Add(bytes.Repeat([]byte{0xff}, 20))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := ParseRestartPoints(b)
		if err != nil {
			return
		}
		for i := 1; i < len(all); i++ {
			if all[i].At <= all[i-1].At || all[i].Off <= all[i-1].Off {
				t.Fatalf("%v after %v", all[i], all[i-1])
			}
		}
		if back, err := ParseRestartPoints(all.Append(nil)); err != nil || !slices.Equal(back, all) {
			t.Fatalf("%v, %v, want %v", back, err, all)
		}
	})
}

// restartsOf unpacks all of p and returns what Restart said after each piece, and all restart points.
func restartsOf(t testing.TB, kind source.Kind, p []byte, pool *source.Pool, apart int64) (all, points RestartPoints) {
	t.Helper()
	ctx := context.Background()
	u := OpenWithPoints(ctx, kind, nil, source.ReadRegion(ctx, bytes.NewReader(p), "f", 0, int64(len(p)), pool, 4), pool, apart)
	defer u.Close()
	for {
		piece, err := u.Next()
		if err == io.EOF {
			return all, u.RestartPoints()
		}
		if err != nil {
			t.Fatal(err)
		}
		s := u.Restart(piece.End() / source.BlockSize * source.BlockSize)
		if s != nil && (len(all) == 0 || all[len(all)-1] != *s) {
			all = append(all, *s)
		}
		piece.Release()
	}
}

// rest is all that a file unpacks to from a restart point on.
func (p RestartPoint) rest(t testing.TB, kind source.Kind, b []byte, pool *source.Pool, apart int64) (got []byte, points RestartPoints, err error) {
	t.Helper()
	ctx := context.Background()
	u := OpenAt(ctx, kind, p, b[:min(len(b), source.BlockSize)], source.ReadRegion(ctx, bytes.NewReader(b), "f", p.Byte(kind), int64(len(b)), pool, 4), pool, apart)
	defer u.Close()
	for at := p.Begin(); ; {
		piece, err := u.Next()
		if err == io.EOF {
			return got, u.RestartPoints(), nil
		}
		if err != nil {
			return got, nil, err
		}
		if piece.Off != at || piece.Off%source.BlockSize != 0 {
			t.Fatalf("a piece at %d, want %d", piece.Off, at)
		}
		at = piece.End()
		got = append(got, piece.B...)
		piece.Release()
	}
}

// TestRestart: from each restart point the rest of a file is unpacked as it is from the beginning, and the same
// restart points are found.
func TestRestart(t *testing.T) {
	for _, w := range packers {
		if !HasRestartPoints(w.kind) {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(41, 42))
			data := mixedBytes(r, 300_000)
			p := w.pack(t, data, r)
			pools := []*source.Pool{source.NewPool(64, 1024), source.NewPool(64, 64<<10)}
			for _, pool := range pools {
				const apart = 12_500
				all, points := restartsOf(t, w.kind, p, pool, apart)
				if len(points) > 5 && len(all) < 3 {
					t.Errorf("%d restarts of %d restart points", len(all), len(points))
				}
				for i, s := range all {
					if i%(len(all)/4+1) != 0 && i < len(all)-1 {
						continue // from each of tiny members takes minutes
					}
					b, err := json.Marshal(s)
					var back RestartPoint
					if err = errors.Join(err, json.Unmarshal(b, &back), s.Check(w.kind, int64(len(p)))); err != nil || back != s {
						t.Fatalf("%+v is %+v as JSON, %v", s, back, err)
					}
					got, found, err := s.rest(t, w.kind, p, pool, apart)
					if err != nil || !bytes.Equal(got, data[s.Begin():]) {
						t.Fatalf("from %d: %d bytes, %v, want %d", s.Off, len(got), err, int64(len(data))-s.Begin())
					}
					for i, x := range found {
						if i > 1 && x.Off-found[i-1].Off > 10*apart && len(points) > 10 {
							t.Errorf("from %d: no restart point in [%d, %d)", s.Off, found[i-1].Off, x.Off)
						}
					}
					if len(found) == 0 || found[0] != points[0] || s.Off-points[0].Off >= apart && found[1] != s {
						t.Errorf("from %d: restart points %v, want %v and this one first", s.Off, found[:min(len(found), 3)], points[0])
					}
				}
			}
		})
	}
}

// FuzzRestart: whatever a restart point says, unpacking from it ends.
func FuzzRestart(f *testing.F) {
	r := rand.New(rand.NewPCG(47, 48))
	data := mixedBytes(r, 60_000)
	files := map[source.Kind][]byte{source.TarGzip: gzipped(f, data, r), source.TarZstd: zstded(f, data, r), source.TarXz: xzed(f, data, r)}
	f.Add([]byte(`{"at":100,"off":1000}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s RestartPoint
		if json.Unmarshal(b, &s) != nil {
			return
		}
		for kind, p := range files {
			if s.Check(kind, int64(len(p))) == nil {
				_, _, _ = s.rest(t, kind, p, source.NewPool(16, 4096), 10_000) // which may be anything
			}
		}
	})
}
