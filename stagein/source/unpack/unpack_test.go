package unpack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// packer compresses in one of the formats.
type packer struct {
	name string
	kind source.Kind
	pack func(t testing.TB, b []byte, r *rand.Rand) []byte
}

var packers = []packer{
	{"gzip", source.TarGzip, parted(1<<30, gzipped)},
	{"gzip members", source.TarGzip, parted(2500, gzipped)},
	{"gzip tiny members", source.TarGzip, parted(30, gzipped)},
	{"gzip large members", source.TarGzip, parted(30_000, gzipped)},
	{"bgzf", source.TarGzip, func(t testing.TB, b []byte, r *rand.Rand) []byte {
		return append(parted(1500, bgzf)(t, b, r), bgzf(t, nil, r)...) // with its end marker
	}},
	{"zstd", source.TarZstd, parted(1<<30, zstded)},
	{"zstd frames", source.TarZstd, parted(2500, zstded)},
	{"zstd tiny frames", source.TarZstd, parted(30, zstded)},
	{"zstd large frames", source.TarZstd, parted(30_000, zstded)},
	{"pzstd", source.TarZstd, parted(2500, pzstded)},
	{"xz", source.TarXz, parted(1<<30, xzed)},
	{"xz blocks", source.TarXz, program("xz", "-0", "-T2", "--block-size=2500", "-c")},
	{"xz large blocks", source.TarXz, program("xz", "-0", "-T2", "--block-size=30000", "-C", "sha256", "-c")},
	{"xz blocks of unknown sizes", source.TarXz, program("xz", "-0", "-T1", "--block-size=2500", "-C", "crc32", "-c")},
	{"xz streams", source.TarXz, func(t testing.TB, b []byte, r *rand.Rand) []byte {
		return append(parted(2500, xzed)(t, b, r), make([]byte, 4*r.IntN(3))...)
	}},
	{"zstd seekable", source.TarZstd, func(t testing.TB, b []byte, r *rand.Rand) []byte {
		return append(parted(2500, zstded)(t, b, r), skippable(randomBytes(r, 300))...) // in place of a seek table
	}},
}

// parted packs b in parts of about n bytes each, some of them empty.
func parted(n int, pack func(t testing.TB, b []byte, r *rand.Rand) []byte) func(testing.TB, []byte, *rand.Rand) []byte {
	return func(t testing.TB, b []byte, r *rand.Rand) (out []byte) {
		for first := true; first || len(b) > 0; first = false {
			m := min(r.IntN(2*n), len(b))
			if n >= 1<<30 {
				m = len(b)
			}
			out = append(out, pack(t, b[:m], r)...)
			b = b[m:]
		}
		return out
	}
}

// program packs with an installed program.
func program(args ...string) func(testing.TB, []byte, *rand.Rand) []byte {
	return func(t testing.TB, b []byte, _ *rand.Rand) []byte {
		t.Helper()
		path, err := exec.LookPath(args[0])
		if err != nil {
			t.Skipf("no %s program", args[0])
		}
		cmd := exec.Command(path, args[1:]...)
		cmd.Stdin = bytes.NewReader(b)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return out
	}
}

// gzipWriters are pooled since they are expensive to create.
var gzipWriters [10]sync.Pool

func gzipped(t testing.TB, b []byte, r *rand.Rand) []byte {
	t.Helper()
	var out bytes.Buffer
	level := []int{0, 1, 6, 9}[r.IntN(4)]
	w, ok := gzipWriters[level].Get().(*gzip.Writer)
	if !ok {
		var err error
		if w, err = gzip.NewWriterLevel(nil, level); err != nil {
			t.Fatal(err)
		}
	}
	w.Reset(&out)
	defer gzipWriters[level].Put(w)
	if r.IntN(3) == 0 {
		w.Name, w.Comment = "name", "comment"
	}
	return closed(t, w, b, &out)
}

// bgzf returns a gzip member that states its size in an extra field.
func bgzf(t testing.TB, b []byte, r *rand.Rand) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Extra = []byte("BC\x02\x00\x00\x00")
	p := closed(t, w, b, &out)
	binary.LittleEndian.PutUint16(p[16:], uint16(len(p)-1))
	return p
}

func closed(t testing.TB, w io.WriteCloser, b []byte, out *bytes.Buffer) []byte {
	t.Helper()
	_, err := w.Write(b)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// encoders are zstd encoders, pooled since they are expensive to create: with and without checksums, with and without
// windows, fast and slow.
var encoders [8]sync.Pool

func zstded(t testing.TB, b []byte, r *rand.Rand) []byte {
	t.Helper()
	i := r.IntN(len(encoders))
	w, _ := encoders[i].Get().(*zstd.Encoder)
	if w == nil {
		var err error
		w, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(i&1 == 0), zstd.WithSingleSegment(i&2 == 0),
			zstd.WithEncoderLevel(zstd.EncoderLevel(1+i>>2)), zstd.WithZeroFrames(true))
		if err != nil {
			t.Fatal(err)
		}
	}
	defer encoders[i].Put(w)
	if r.IntN(2) == 0 {
		return w.EncodeAll(b, nil)
	}
	var out bytes.Buffer // without a stated size
	w.Reset(&out)
	return closed(t, w, b, &out)
}

func skippable(b []byte) []byte {
	return append(binary.LittleEndian.AppendUint32([]byte("\x5e\x2a\x4d\x18"), uint32(len(b))), b...)
}

// xzDict returns the dictionary size for blocks of at most n bytes. Each block costs both sides that much memory, and
// the library mishandles a dictionary that is smaller than its block.
func xzDict(n int) int {
	if n < 1<<16 {
		return 1 << 16
	}
	return 1 << 20
}

// xzed returns a stream of one or more blocks, with or without padding at the end.
func xzed(t testing.TB, b []byte, r *rand.Rand) []byte {
	t.Helper()
	var out bytes.Buffer
	c := xz.WriterConfig{CheckSum: []byte{xz.CRC32, xz.CRC64, xz.SHA256}[r.IntN(3)], NoCheckSum: r.IntN(4) == 0, DictCap: xzDict(len(b))}
	if r.IntN(2) == 0 {
		c.BlockSize = max(1+r.Int64N(5000), int64(len(b)/20))
	}
	w, err := c.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	return append(closed(t, w, b, &out), make([]byte, 4*(r.IntN(5)/4))...)
}

// pzstded returns a frame preceded by one that states its size.
func pzstded(t testing.TB, b []byte, r *rand.Rand) []byte {
	t.Helper()
	p := zstded(t, b, r)
	return append(skippable(binary.LittleEndian.AppendUint32(nil, uint32(len(p)))), p...)
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// mixedBytes returns n bytes of random, constant and text-like runs.
func mixedBytes(r *rand.Rand, n int) (b []byte) {
	for len(b) < n {
		m := r.IntN(5000)
		switch r.IntN(3) {
		case 0:
			b = append(b, randomBytes(r, m)...)
		case 1:
			b = append(b, make([]byte, m)...)
		default:
			for range m {
				b = append(b, "etaoin shrdlu"[r.IntN(13)])
			}
		}
	}
	return b[:n]
}

// compressed returns a packed that reads b in pieces.
func compressed(ctx context.Context, b []byte, pool *source.Pool) *packed {
	head := b[:min(len(b), source.BlockSize)]
	return &packed{left: slices.Clone(head), from: source.ReadRegion(ctx, bytes.NewReader(b), "f", int64(len(head)), int64(len(b)), pool, 3)}
}

// all reads all of d, as Stream.run does.
func all(in *packed, d io.ReadCloser) ([]byte, error) {
	var out []byte
	buf := make([]byte, 1000)
	for {
		n, err := fill(buf, d)
		out = append(out, buf[:n]...)
		if err = in.explain(err); err != nil {
			_ = d.Close() // returns no error of its own
			if err == io.EOF {
				err = nil
			}
			return out, err
		}
	}
}

// decoded decodes b. Any damage found must be inside b, and every buffer must be returned.
func decoded(t testing.TB, kind source.Kind, b []byte) (got []byte, err error) {
	t.Helper()
	pool := source.NewPool(8, 1024)
	in := compressed(context.Background(), b, pool)
	d, err := decoder(kind, in)
	if err == nil {
		got, err = all(in, d)
	} else {
		err = in.explain(err)
	}
	in.release()
	in.from.Close()
	if pool.Out() != 0 {
		t.Fatalf("%d buffers are out", pool.Out())
	}
	var damage *DamageError
	if err != nil && !errors.As(err, &damage) {
		t.Fatalf("%v, want damage", err)
	}
	if err != nil && (damage.Off < 0 || damage.Off > int64(len(b)) || damage.Cut && damage.Off != int64(len(b))) {
		t.Fatalf("damage at %d of %d bytes: %v", damage.Off, len(b), damage)
	}
	return got, err
}

// TestDecoded: decoding restores the packed bytes from all parts of a file; a file truncated inside a part, or with
// trailing bytes, is damaged.
func TestDecoded(t *testing.T) {
	for _, w := range packers {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(7, 7))
			for _, n := range []int{0, 1, 900, 10_000, 30_000} {
				b := mixedBytes(r, n)
				p := w.pack(t, b, r)
				if got, err := decoded(t, w.kind, p); err != nil || !bytes.Equal(got, b) {
					t.Errorf("%d bytes as %d: %d, %v", n, len(p), len(got), err)
				}
				if n == 0 {
					continue
				}
				for range 6 { // truncated, perhaps between two parts
					got, err := decoded(t, w.kind, p[:1+r.IntN(len(p)-1)])
					var damage *DamageError
					if !bytes.HasPrefix(b, got) || w.kind != source.TarXz && errors.As(err, &damage) && !damage.Cut { // xz may end in its padding
						t.Errorf("truncated: %d bytes, %v", len(got), err)
					}
				}
				for _, garbage := range []string{"x", "xy", "xyz", "garbage that is longer than a header", string(p[:5])} {
					if _, err := decoded(t, w.kind, append(slices.Clone(p), garbage...)); err == nil {
						t.Errorf("%d bytes and %q: no error", n, garbage)
					}
				}
			}
		})
	}
}

// TestCutInOnePart: no truncation of a file of one part passes for its end.
func TestCutInOnePart(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	b := mixedBytes(r, 700)
	for _, w := range []packer{{"gzip", source.TarGzip, gzipped}, {"zstd", source.TarZstd, zstded}, {"xz", source.TarXz, program("xz", "-T2", "--block-size=300", "-c")}} {
		p := w.pack(t, b, r)
		for n := 1; n < len(p); n += 1 + n/40 {
			var damage *DamageError
			if got, err := decoded(t, w.kind, p[:n]); !errors.As(err, &damage) || !bytes.HasPrefix(b, got) {
				t.Errorf("%s, %d of %d bytes: %d, %v", w.name, n, len(p), len(got), err)
			}
		}
	}
}

// FuzzDecoded damages archives: output without an error is the packed data, as far as there are checksums.
func FuzzDecoded(f *testing.F) {
	for i := range 40 {
		f.Add(uint64(i), uint16(i*500), uint16(i*1000%20_000*(i%2)), uint8(i%4), uint8(i))
	}
	f.Fuzz(func(t *testing.T, seed uint64, n, cut uint16, flips, way uint8) {
		r := rand.New(rand.NewPCG(seed, 9))
		w := packers[int(way)%len(packers)]
		p := w.pack(t, mixedBytes(r, int(n)), r)
		for range flips % 8 {
			p[r.IntN(len(p))] ^= 1 << r.IntN(8)
		}
		if cut > 0 {
			p = p[:max(len(p)-int(cut)%len(p), 1)]
		}
		_, _ = decoded(t, w.kind, p) // does the checks
	})
}

// TestGzipEndsInName: a truncated header is damage; Go's own reader takes it for the end of the file.
func TestGzipEndsInName(t *testing.T) {
	one := bgzf(t, []byte("data"), nil)
	cut := append(slices.Clone(one), "\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\x03na"...)
	got, err := decoded(t, source.TarGzip, cut)
	var damage *DamageError
	if !errors.As(err, &damage) || !damage.Cut || string(got) != "data" {
		t.Errorf("%q, %v; want what is there, and that the rest is missing", got, err)
	}
}

// TestUnpackedAhead: decoding continues while the reader waits, until the buffers are full, and can be closed at any
// time.
func TestUnpackedAhead(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 11))
	data := randomBytes(r, 20<<20)
	for name, pack := range map[source.Kind]func(testing.TB, []byte, *rand.Rand) []byte{source.TarGzip: gzipped, source.TarZstd: pzstded} {
		p := parted(100_000, pack)(t, data, r)
		for _, take := range []int{0, 1, 7, -1} {
			pool := source.NewPool(8, 256<<10)
			ctx := context.Background()
			u := Open(ctx, name, nil, source.ReadRegion(ctx, bytes.NewReader(p), "f", 0, int64(len(p)), pool, 2), pool)
			late := time.Now().Add(time.Minute)
			for len(u.queue) < queueSize {
				if runtime.Gosched(); time.Now().After(late) {
					t.Fatalf("%s: %d pieces after a minute", name, len(u.queue))
				}
			}
			if off := u.Offset(); off > 12<<20 {
				t.Errorf("%s: %d bytes were read for nobody", name, off)
			}
			var got []byte
			var err error
			for i := 0; i != take && err == nil; i++ {
				var piece *source.Piece
				if piece, err = u.Next(); err == nil {
					if piece.Off != int64(len(got)) {
						t.Fatalf("piece at %d, want %d", piece.Off, len(got))
					}
					got = append(got, piece.B...)
					piece.Release()
				}
			}
			u.Close()
			if take < 0 && (err != io.EOF || !bytes.Equal(got, data)) || !bytes.HasPrefix(data, got) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
			if pool.Out() != 0 {
				t.Errorf("%s: %d buffers are out", name, pool.Out())
			}
		}
	}
}

// TestUnpackedSourceFails: an error of the source is reported unchanged.
func TestUnpackedSourceFails(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 12))
	for _, w := range append(slices.Clone(packers), packer{"bzip2", source.TarBzip2, program("bzip2", "-1")}) {
		p := w.pack(t, mixedBytes(r, 50_000), r)
		pool := source.NewPool(8, 1024)
		ctx := context.Background()
		u := Open(ctx, w.kind, nil, source.ReadRegion(ctx, bytes.NewReader(p[:len(p)-1]), "f", 0, int64(len(p)), pool, 2), pool)
		var err error
		for err == nil {
			var piece *source.Piece
			if piece, err = u.Next(); err == nil {
				piece.Release()
			}
		}
		if u.Close(); !errors.Is(err, syscall.ESTALE) || pool.Out() != 0 {
			t.Errorf("%s: %v, want ESTALE; %d buffers out", w.name, err, pool.Out())
		}
	}
}

// TestBzip2Damage: the serial decoder tells truncation from damage and verifies all checksums.
func TestBzip2Damage(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 14))
	data := mixedBytes(r, 250_000)
	pack := program("bzip2", "-1")
	p := append(pack(t, data, r), pack(t, data, r)...)
	sum := slices.Clone(p)
	sum[len(sum)-3] ^= 1 // the checksum of all blocks, whatever bit it begins at
	for _, c := range []struct {
		name string
		p    []byte
		want string // part of the error
		cut  bool
	}{
		{"two streams", p, "", false},
		{"truncated", p[:len(p)-20], "truncated", true},
		{"cut in the middle", p[:len(p)/2+100], "truncated", true},
		{"checksum", sum, "damaged", false},
		{"garbage", append(slices.Clone(p), "garbage that follows"...), "something follows", false},
	} {
		in := compressed(context.Background(), c.p, source.NewPool(8, 1024))
		d, err := decoder(source.TarBzip2, in)
		if err != nil {
			t.Fatal(err)
		}
		got, err := all(in, d)
		in.release()
		in.from.Close()
		var damage *DamageError
		switch {
		case c.want == "":
			if err != nil || !bytes.Equal(got, slices.Concat(data, data)) {
				t.Errorf("%s: %d bytes, %v", c.name, len(got), err)
			}
		case !errors.As(err, &damage) || damage.Cut != c.cut || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// unpackAll reads a whole Stream.
func unpackAll(t testing.TB, kind source.Kind, p []byte) (n int, sum uint32) {
	t.Helper()
	pool := source.NewPool(32, 1<<20)
	ctx := context.Background()
	u := Open(ctx, kind, nil, source.ReadRegion(ctx, bytes.NewReader(p), "f", 0, int64(len(p)), pool, 4), pool)
	defer u.Close()
	for {
		piece, err := u.Next()
		if err == io.EOF {
			return n, sum
		}
		if err != nil {
			t.Fatal(err)
		}
		n += len(piece.B)
		sum = crc32.Update(sum, crc32.IEEETable, piece.B)
		piece.Release()
	}
}

// TestUnpackPrograms decodes archives written by programs.
func TestUnpackPrograms(t *testing.T) {
	data := mixedBytes(rand.New(rand.NewPCG(18, 18)), 1<<20)
	for _, w := range programPackers {
		p := w.pack(t, data, nil)
		if n, sum := unpackAll(t, w.kind, p); n != len(data) || sum != crc32.ChecksumIEEE(data) {
			t.Errorf("%s: %d bytes, want %d", w.name, n, len(data))
		}
	}
}

var programPackers = []packer{
	{"gzip", source.TarGzip, program("gzip", "-c")},
	{"bgzip", source.TarGzip, program("bgzip", "-c")},
	{"pigz", source.TarGzip, program("pigz", "-c", "-i", "-p2")},
	{"zstd", source.TarZstd, program("zstd", "-c")},
	{"pzstd", source.TarZstd, program("pzstd", "-c", "-1", "-p2")},
	{"bzip2", source.TarBzip2, program("bzip2", "-c")},
	{"xz", source.TarXz, program("xz", "-1", "-T2", "-c")},
	{"lbzip2", source.TarBzip2, program("lbzip2", "-c", "-n2")},
	{"pbzip2", source.TarBzip2, program("pbzip2", "-c", "-p2")},
}

// BenchmarkUnpack measures the rate of each format.
func BenchmarkUnpack(b *testing.B) {
	data := mixedBytes(rand.New(rand.NewPCG(19, 19)), 48<<20)
	for _, w := range programPackers {
		p := w.pack(b, data, rand.New(rand.NewPCG(20, 20)))
		b.Run(w.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				unpackAll(b, w.kind, p)
			}
		})
	}
}
