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

// startsOf unpacks all of p, and is the starts that there are on the way, each before the piece behind which
// it was asked for.
func startsOf(t testing.TB, kind source.Kind, p []byte, pool *source.Pool, apart int64) (all []Start, places Places) {
	t.Helper()
	ctx := context.Background()
	u := UnpackPlaces(ctx, kind, nil, source.ReadRegion(ctx, bytes.NewReader(p), "f", 0, int64(len(p)), pool, 4), pool, Spacing{Apart: apart, Starts: true})
	defer u.Close()
	for {
		piece, err := u.Next()
		if err == io.EOF {
			return all, u.Places()
		}
		if err != nil {
			t.Fatal(err)
		}
		s := u.Start(piece.End() / source.BlockSize * source.BlockSize)
		if s != nil && (len(all) == 0 || all[len(all)-1] != *s) {
			all = append(all, *s)
		}
		piece.Release()
	}
}

// rest is all that a file unpacks to from a start on.
func (s Start) rest(t testing.TB, kind source.Kind, p []byte, pool *source.Pool, apart int64, before Places) (got []byte, places Places, err error) {
	t.Helper()
	ctx := context.Background()
	u := UnpackFrom(ctx, kind, s, before, source.ReadRegion(ctx, bytes.NewReader(p), "f", s.Byte(kind), int64(len(p)), pool, 4), pool, Spacing{Apart: apart, Starts: true})
	defer u.Close()
	for at := s.Begin(); ; {
		piece, err := u.Next()
		if err == io.EOF {
			return got, u.Places(), nil
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

// TestStarts: from each start in it a file is unpacked to its end as from its beginning, with what of its checksums
// comes behind it, and the same places are found.
func TestStarts(t *testing.T) {
	for _, w := range slices.Concat(packedWays, memberWays) {
		if !HasPlaces(w.kind) {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(41, 42))
			data := mixedBytes(r, 1_200_000)
			p := w.pack(t, data, r)
			pools := []*source.Pool{source.NewPool(64, 1024), source.NewPool(64, 64<<10)}
			for _, pool := range pools {
				const apart = 50_000
				all, places := startsOf(t, w.kind, p, pool, apart)
				if len(places) > 5 && len(all) < 3 {
					t.Errorf("%d starts, and %d places", len(all), len(places))
				}
				for i, s := range all {
					if i%(len(all)/6+1) != 0 && i < len(all)-1 {
						continue // from each of tiny members takes minutes
					}
					b, err := json.Marshal(s)
					var back Start
					if err = errors.Join(err, json.Unmarshal(b, &back), s.Check(w.kind, int64(len(p)))); err != nil || back != s {
						t.Fatalf("%+v is %+v as JSON, %v", s, back, err)
					}
					before := slices.Clone(places)
					for i, x := range places {
						if x.Off > s.Off {
							before = before[:i]
							break
						}
					}
					got, found, err := s.rest(t, w.kind, p, pool, apart, before)
					if err != nil || !bytes.Equal(got, data[s.Begin():]) {
						t.Fatalf("from %d: %d bytes, %v, want %d", s.Off, len(got), err, int64(len(data))-s.Begin())
					}
					for i, x := range found {
						if i > 0 && x.Off-found[i-1].Off > 10*apart && len(places) > 10 {
							t.Errorf("from %d: no place in [%d, %d)", s.Off, found[i-1].Off, x.Off)
						}
					}
					if n := len(found); n < len(before) || !slices.Equal(found[:len(before)], before) {
						t.Errorf("from %d: %d places, of which the first are not those of before", s.Off, n)
					}
				}
			}
		})
	}
}

// TestStartsAreSummed: who begins in the middle of a member compares its checksum all the same.
func TestStartsAreSummed(t *testing.T) {
	for _, w := range []packedWay{
		{"gzip", source.TarGzip, program("gzip", "-c")},
		{"flushes", source.TarGzip, flushed},
	} {
		t.Run(w.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(43, 44))
			data := mixedBytes(r, 1_000_000)
			p := w.pack(t, data, r)
			pool := source.NewPool(64, 256<<10)
			all, _ := startsOf(t, w.kind, p, pool, 50_000)
			if len(all) < 3 {
				t.Fatalf("%d starts", len(all))
			}
			for _, s := range all {
				s.Sum++
				var damage *DamageError
				if got, _, err := s.rest(t, w.kind, p, pool, 50_000, nil); !errors.As(err, &damage) {
					t.Errorf("from %d with another sum: %d bytes, %v, want damage", s.Off, len(got), err)
				}
			}
		})
	}
}

// TestStartsAreFew: of those that were seen, only those are kept that may be asked for.
func TestStartsAreFew(t *testing.T) {
	p := program("gzip", "-c")(t, mixedBytes(rand.New(rand.NewPCG(45, 46)), 3_000_000), nil)
	ctx := context.Background()
	pool := source.NewPool(64, 16<<10)
	u := UnpackPlaces(ctx, source.TarGzip, nil, source.ReadRegion(ctx, bytes.NewReader(p), "f", 0, int64(len(p)), pool, 4), pool, Spacing{Apart: 40_000, Windows: 1, Starts: true})
	defer u.Close()
	most := 0
	for {
		piece, err := u.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		piece.Release()
		u.list.mu.Lock()
		most = max(most, len(u.list.starts))
		if n := len(u.list.all); n > 1 {
			t.Fatalf("%d places are kept", n)
		}
		u.list.mu.Unlock()
	}
	if most < 1 || most > 20 {
		t.Errorf("up to %d starts are kept", most)
	}
}

// FuzzStart: whatever a start says, what is unpacked from it ends.
func FuzzStart(f *testing.F) {
	r := rand.New(rand.NewPCG(47, 48))
	data := mixedBytes(r, 60_000)
	files := map[source.Kind][]byte{source.TarGzip: gzipped(f, data, r)}
	f.Add([]byte(`{"at":100,"off":1000,"bit":3,"window":"A4A=","sum":7}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Start
		if json.Unmarshal(b, &s) != nil {
			return
		}
		for kind, p := range files {
			if s.Check(kind, int64(len(p))) == nil {
				_, _, _ = s.rest(t, kind, p, source.NewPool(16, 4096), 10_000, nil) // which may be anything
			}
		}
	})
}
