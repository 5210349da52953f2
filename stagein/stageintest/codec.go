package stageintest

import (
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os/exec"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// ZstdFrames packs b as zstd frames that state their size, without a seek table.
func ZstdFrames(t testing.TB, b []byte) (packed []byte) {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	NoError(t, err)
	for ; len(b) > 0; b = b[min(len(b), 100_000):] {
		packed = z.EncodeAll(b[:min(len(b), 100_000)], packed)
	}
	return packed
}

// Bgzip packs b in BGZF blocks, as the program does.
func Bgzip(t testing.TB, b []byte) []byte {
	t.Helper()
	const block = 0xff00
	var out bytes.Buffer
	for at := 0; at <= len(b); at += block {
		from := out.Len()
		w := gzip.NewWriter(&out)
		w.Extra = []byte("BC\x02\x00\x00\x00")
		_, err := w.Write(b[at:min(at+block, len(b))])
		NoError(t, err, w.Close())
		binary.LittleEndian.PutUint16(out.Bytes()[from+16:], uint16(out.Len()-from-1))
	}
	NoError(t, gzip.NewWriter(&out).Close())
	return out.Bytes()
}

// Codec compresses a tar and decompresses it by a plain library.
type Codec struct {
	Name   string
	Pack   func(t testing.TB, b []byte) []byte
	Unpack func(r io.Reader) (io.Reader, error)
}

func packWith(open func(w io.Writer) (io.WriteCloser, error)) func(testing.TB, []byte) []byte {
	return func(t testing.TB, b []byte) []byte {
		t.Helper()
		var out bytes.Buffer
		w, err := open(&out)
		if err == nil {
			_, err = w.Write(b)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
}

// PackProgram compresses with a program. It skips the test if the program is missing.
func PackProgram(args ...string) func(testing.TB, []byte) []byte {
	return func(t testing.TB, b []byte) []byte {
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

// Gunzip decompresses gzip.
func Gunzip(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }

// Bunzip2 decompresses bzip2.
func Bunzip2(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }

// Unxz decompresses xz.
func Unxz(r io.Reader) (io.Reader, error) { return xz.NewReader(r) }

// Unzstd decompresses zstd.
func Unzstd(r io.Reader) (io.Reader, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
}

// Codecs has every format. The first three need no program.
var Codecs = []Codec{
	{"gzip", packWith(func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil }), Gunzip},
	{"zstd", packWith(func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) }), Unzstd},
	{"xz", packWith(func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) }), Unxz},
	{"program gzip", PackProgram("gzip", "-c"), Gunzip},
	{"program pigz", PackProgram("pigz", "-c", "-p2"), Gunzip},
	{"program bgzip", PackProgram("bgzip", "-c", "-@2"), Gunzip},
	{"program zstd", PackProgram("zstd", "-c"), Unzstd},
	{"program pzstd", PackProgram("pzstd", "-c"), Unzstd},
	{"program xz", PackProgram("xz", "-c"), Unxz},
	{"program xz blocks", PackProgram("xz", "-T2", "--block-size=5000", "-c"), Unxz},
	{"program bzip2", PackProgram("bzip2", "-c"), Bunzip2},
	{"program lbzip2", PackProgram("lbzip2", "-c", "-n2"), Bunzip2},
	{"program pbzip2", PackProgram("pbzip2", "-c", "-p2", "-b1"), Bunzip2},
}

// EveryCodec runs f as a subtest for each of Codecs.
func EveryCodec(t *testing.T, f func(t *testing.T, c Codec)) {
	for _, c := range Codecs {
		t.Run(c.Name, func(t *testing.T) { f(t, c) })
	}
}

// PackGzip compresses with gzip.
func PackGzip(t *testing.T, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(plain)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// ZstdUnsizedFrames packs b as zstd frames of n bytes that do not state their size.
func ZstdUnsizedFrames(t testing.TB, b []byte, n int) (packed []byte) {
	t.Helper()
	for ; len(b) > 0; b = b[min(len(b), n):] {
		var out bytes.Buffer
		z, err := zstd.NewWriter(&out)
		NoError(t, err)
		_, err = z.Write(b[:min(len(b), n)])
		NoError(t, err, z.Close())
		packed = append(packed, out.Bytes()...)
	}
	return packed
}

// ZstdUncheckedFrames packs b as zstd frames of n bytes without checksums.
func ZstdUncheckedFrames(t *testing.T, b []byte, n int) (packed []byte) {
	t.Helper()
	z, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(false))
	NoError(t, err)
	for ; len(b) > 0; b = b[min(len(b), n):] {
		packed = z.EncodeAll(b[:min(len(b), n)], packed)
	}
	return packed
}

// PartedCodecs produce files of several members, frames or blocks.
var PartedCodecs = []Codec{
	{"bgzip", Bgzip, Gunzip},
	{"zstd frames of unknown size", func(t testing.TB, b []byte) []byte { return ZstdUnsizedFrames(t, b, 50_000) }, Unzstd},
	{"zstd frames", func(t testing.TB, b []byte) []byte { return ZstdFrames(t, b) }, Unzstd},
	{"xz blocks", PackProgram("xz", "-1", "-T2", "--block-size=50000", "-c"), Unxz},
	{"xz streams", func(t testing.TB, b []byte) (packed []byte) {
		for ; len(b) > 0; b = b[min(len(b), 50_000):] {
			packed = append(packed, Codecs[2].Pack(t, b[:min(len(b), 50_000)])...)
		}
		return packed
	}, Unxz},
}

// GzipOneMember produces a single gzip member, as tar czf does.
var GzipOneMember = Codec{"gzip of Go", Codecs[0].Pack, Gunzip}
