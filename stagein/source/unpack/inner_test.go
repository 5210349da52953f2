package unpack

import (
	"bytes"
	"compress/flate"
	stdgzip "compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// memberWays make members of gzip as programs do; what is packed is in one, or in some.
var memberWays = []packedWay{
	{"gzip -1", source.TarGzip, program("gzip", "-1", "-c")},
	{"gzip", source.TarGzip, program("gzip", "-c")},
	{"gzip -9", source.TarGzip, program("gzip", "-9", "-c")},
	{"pigz", source.TarGzip, program("pigz", "-c", "-p2", "-b", "128")},
	{"Go", source.TarGzip, func(t testing.TB, b []byte, r *rand.Rand) []byte {
		var out bytes.Buffer
		w, err := stdgzip.NewWriterLevel(&out, r.IntN(12)-2)
		if err != nil {
			t.Fatal(err)
		}
		return closed(t, w, b, &out)
	}},
	{"klauspost", source.TarGzip, gzipped},
	{"flushes", source.TarGzip, flushed},
	{"members", source.TarGzip, parted(200_000, gzipped)},
}

// flushed makes a block for each few bytes, some of them empty.
func flushed(t testing.TB, b []byte, r *rand.Rand) []byte {
	var out bytes.Buffer
	w, err := stdgzip.NewWriterLevel(&out, r.IntN(12)-2)
	for err == nil && len(b) > 0 {
		n := min(len(b), r.IntN(3000))
		_, err = w.Write(b[:n])
		if b = b[n:]; err == nil {
			err = w.Flush()
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestPlacesInside: in the middle of members of gzip there are places, however they were made; all
// that comes after one is unpacked from it as from the beginning.
func TestPlacesInside(t *testing.T) {
	for _, w := range memberWays {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(31, 32))
			data := mixedBytes(r, 1_200_000)
			p := w.pack(t, data, r)
			for _, pool := range []*source.Pool{source.NewPool(64, 1024), source.NewPool(64, 64<<10)} { // members one by one, and in batches
				places, way := placesOf(t, w.kind, p, pool, 50_000)
				if len(places) < 5 || way > 400_000 {
					t.Errorf("%d places, up to %d bytes apart", len(places), way)
				}
				bits := 0
				for i, x := range places {
					if i > 0 { // all that lies between two
						s := Stretch{File: bytes.NewReader(p), Name: "f", Kind: w.kind, Size: int64(len(p)), Places: places, Off: places[i-1].Off, End: x.Off}
						if got := s.unpacked(t, pool, source.NewPool(8, 1000)); !bytes.Equal(got, data[s.Off:s.End]) {
							t.Fatalf("[%d, %d) is not what it was", s.Off, s.End)
						}
					}
					s := Stretch{File: bytes.NewReader(p), Name: "f", Kind: w.kind, Size: int64(len(p)), Places: Places{x}, Off: x.Off, End: int64(len(data))}
					if got := s.unpacked(t, pool, source.NewPool(8, 1000)); !bytes.Equal(got, data[x.Off:]) {
						t.Fatalf("what is unpacked from %d, bit %d, is not what it was", x.At, x.Bit)
					}
					if x.Bit > 0 {
						bits++
					}
				}
				if strings.HasPrefix(w.name, "gzip") && bits == 0 {
					t.Error("all places are at whole bytes")
				}
			}
		})
	}
}

// TestPlacesInsideLying: a member that unpacks to more than it says, as one of 4 GiB does, has places, too.
func TestPlacesInsideLying(t *testing.T) {
	data := mixedBytes(rand.New(rand.NewPCG(37, 38)), 1<<20)
	p := program("gzip", "-c")(t, data, nil)
	copy(p[len(p)-4:], []byte{1, 0, 0, 0}) // which is wrong, and is seen at its end
	ctx := context.Background()
	pool := source.NewPool(64, 512<<10)
	u := UnpackPlaces(ctx, source.TarGzip, nil, source.ReadRegion(ctx, bytes.NewReader(p), "f", 0, int64(len(p)), pool, 4), pool, Spacing{Apart: 50_000})
	defer u.Close()
	var damage *DamageError
	if err := drain(u); !errors.As(err, &damage) {
		t.Errorf("%v, want damage", err)
	}
	if places := u.Places(); len(places) < 10 || u.Way(int64(len(data))) > 200_000 {
		t.Errorf("%d places, up to %d bytes apart", len(places), u.Way(int64(len(data))))
	}
}

// TestWindowsAreBounded: what is kept for places in members takes no more than it may; they are farther
// apart then, and say so.
func TestWindowsAreBounded(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 34))
	var data []byte
	for len(data) < 4<<20 { // of which each part repeats some of the one before
		from := max(len(data)-20_000, 0)
		data = append(append(data, randomBytes(r, 5000)...), data[from:min(from+3000, len(data))]...)
	}
	p := program("gzip", "-c")(t, data, r)
	for _, most := range []int64{1, 20_000, 100_000, 0} {
		ctx := context.Background()
		pool := source.NewPool(64, 64<<10)
		u := UnpackPlaces(ctx, source.TarGzip, nil, source.ReadRegion(ctx, bytes.NewReader(p), "f", 0, int64(len(p)), pool, 4), pool, Spacing{Apart: 10_000, Windows: most})
		if err := drain(u); err != nil {
			t.Fatal(err)
		}
		sum, gap := int64(0), int64(0)
		places := u.Places()
		for i, x := range places {
			if sum += int64(len(x.Window)); i > 0 {
				gap = max(gap, x.Off-places[i-1].Off)
			}
		}
		if want := max(gap, int64(len(data))-places[len(places)-1].Off); u.Way(int64(len(data))) != want {
			t.Errorf("Way = %d, want %d", u.Way(int64(len(data))), want)
		}
		if most > 0 && sum > most || most != 1 && most != 20_000 && len(places) < 3 || most == 0 && sum < 100_000 {
			t.Errorf("%d bytes for %d places, want at most %d", sum, len(places), most)
		}
		u.Close()
	}
}

// drain takes all that u gives; nil is that there was no error.
func drain(u *Unpacked) error {
	for {
		p, err := u.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		p.Release()
	}
}

// TestSift: what is kept of a window is what makes a difference.
func TestSift(t *testing.T) {
	r := rand.New(rand.NewPCG(35, 36))
	for range 20 {
		window := mixedBytes(r, 1+r.IntN(600))
		data := append(slices.Clone(window[:r.IntN(len(window))]), randomBytes(r, r.IntN(3000))...)
		data = append(data, data[:len(data)/2]...)
		var out bytes.Buffer
		w, err := flate.NewWriterDict(&out, r.IntN(9)+1, window)
		if err != nil {
			t.Fatal(err)
		}
		closed(t, w, data, &out)
		raw := func(window []byte) []byte {
			b, err := io.ReadAll(flate.NewReaderDict(bytes.NewReader(out.Bytes()), window))
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		want := make([]byte, len(window))
		for i := range window {
			other := slices.Clone(window)
			if other[i]++; !bytes.Equal(raw(other), data) {
				want[i] = window[i]
			}
		}
		got := sift(window, out.Bytes(), 0)
		if !bytes.Equal(got, want) || !bytes.Equal(raw(got), data) {
			t.Errorf("of %d bytes others are kept than those that are used", len(window))
		}
		if short := sift(window, out.Bytes()[:out.Len()/2], 0); !bytes.Equal(short, window) {
			t.Errorf("of data that are cut, %d bytes of window are not kept as they are", len(window))
		}
		if got, err := (Place{Window: packWindow(want)}).window(); err != nil || !bytes.Equal(got, want) {
			t.Errorf("a window of %d bytes comes back as %d, %v", len(want), len(got), err)
		}
	}
}

// FuzzPlaceInside: from no place, which may be anything, and of no file, also if it is damaged, does
// anything else come than bytes or an error. If the file is whole and the place is one of it, it is what it was.
func FuzzPlaceInside(f *testing.F) {
	for i := range 40 {
		f.Add(uint64(i), uint32(i*9000), uint8(i), uint8(i%3), uint8(i%8), []byte(nil))
	}
	f.Add(uint64(1), uint32(100_000), uint8(2), uint8(0), uint8(3), []byte("no window"))
	f.Fuzz(func(t *testing.T, seed uint64, n uint32, way, flips, bit uint8, window []byte) {
		r := rand.New(rand.NewPCG(seed, 41))
		data := mixedBytes(r, int(n%400_000))
		p := memberWays[4+int(way)%(len(memberWays)-4)].pack(t, data, r)
		pool := source.NewPool(16, 64<<10)
		places, _ := placesOf(t, source.TarGzip, p, pool, 1+r.Int64N(30_000))
		if len(places) == 0 {
			return
		}
		x := places[r.IntN(len(places))]
		whole := flips == 0 && len(window) == 0
		for range flips {
			p[r.IntN(len(p))] ^= 1 << r.IntN(8)
		}
		if len(window) > 0 {
			x.Bit, x.Window = bit%8, string(window)
		}
		s := Stretch{File: bytes.NewReader(p), Name: "f", Kind: source.TarGzip, Size: int64(len(p)), Places: Places{x}, Off: x.Off, End: int64(len(data))}
		u := s.Unpack(context.Background(), pool, source.NewPool(8, 1000))
		defer u.Close()
		var got []byte
		var err error
		for err == nil {
			var piece *source.Piece
			if piece, err = u.Next(); err == nil {
				got = append(got, piece.B...)
				piece.Release()
			}
		}
		if whole && (err != io.EOF || !bytes.Equal(got, data[x.Off:])) {
			t.Errorf("from %d: %d bytes, %v, want %d", x.Off, len(got), err, len(data)-int(x.Off))
		}
	})
}

// BenchmarkPlaces compares unpacking with a look for places with that without.
func BenchmarkPlaces(b *testing.B) {
	data := mixedBytes(rand.New(rand.NewPCG(19, 19)), 48<<20)
	for _, w := range []packedWay{memberWays[0], memberWays[1], memberWays[7], {"bgzip", source.TarGzip, program("bgzip", "-c")}} {
		p := w.pack(b, data, rand.New(rand.NewPCG(20, 20)))
		for _, apart := range []int64{0, 4 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%d", w.name, apart), func(b *testing.B) {
				b.SetBytes(int64(len(data)))
				before, windows := processor(), 0
				for b.Loop() {
					if apart == 0 {
						unpackAll(b, w.kind, p, 1)
						continue
					}
					pool := source.NewPool(32, 1<<20)
					places, _ := placesOf(b, w.kind, p, pool, apart)
					windows = len(places.Append(nil)) / len(places)
				}
				b.ReportMetric(float64(len(data))*float64(b.N)/1e6/(processor()-before).Seconds(), "MB/cpu-s")
				b.ReportMetric(float64(windows), "bytes/place")
			})
		}
	}
}
