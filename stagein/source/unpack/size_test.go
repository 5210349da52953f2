package unpack

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// squeeze packs b with a writer made by open.
func squeeze[W io.WriteCloser](t *testing.T, b []byte, open func(io.Writer) (W, error)) []byte {
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

func squeezeXz(t *testing.T, b []byte) []byte {
	return squeeze(t, b, func(w io.Writer) (*xz.Writer, error) { return xz.NewWriter(w) })
}

func squeezeGzip(t *testing.T, b []byte) []byte {
	return squeeze(t, b, func(w io.Writer) (*gzip.Writer, error) { return gzip.NewWriter(w), nil })
}

func squeezeZstd(t *testing.T, b []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return z.EncodeAll(b, nil)
}

// TestMinUnpacked: a stated size is found, and no size is reported where none is stated.
func TestMinUnpacked(t *testing.T) {
	text := bytes.Repeat([]byte("some text that packs well. "), 80*source.BlockSize)
	n := int64(len(text))
	join := func(all ...[]byte) []byte { return bytes.Join(all, nil) }
	note := []byte("\x50\x2a\x4d\x18\x02\x00\x00\x00ab")
	stream := squeeze(t, text, func(w io.Writer) (*zstd.Encoder, error) { return zstd.NewWriter(w) })
	for name, x := range map[string]struct {
		kind   source.Kind
		packed []byte
		want   int64 // 0: only the packed size is known
	}{
		"xz":                       {source.TarXz, squeezeXz(t, text), 0},
		"zstd":                     {source.TarZstd, squeezeZstd(t, text), n},
		"zstd after a note":        {source.TarZstd, join(note, squeezeZstd(t, text)), 0},
		"zstd of a stream":         {source.TarZstd, stream, 0},
		"zstd, two frames":         {source.TarZstd, join(squeezeZstd(t, text), note, squeezeZstd(t, text[:n/2]), note), n},
		"zstd, then a stream":      {source.TarZstd, join(squeezeZstd(t, text), stream, squeezeZstd(t, text)), n},
		"zstd, with garbage":       {source.TarZstd, join(squeezeZstd(t, text), squeezeZstd(t, text), []byte("garbage")), n},
		"zstd, cut":                {source.TarZstd, join(squeezeZstd(t, text), squeezeZstd(t, text)[:100]), n},
		"zstd, of impossible size": {source.TarZstd, []byte("\x28\xb5\x2f\xfd\xe0\x00\x00\x00\x00\x00\x01\x00\x00\x01\x00\x00"), 0},
		"gzip":                     {source.TarGzip, squeezeGzip(t, text), n},
		"gzip, two members":        {source.TarGzip, join(squeezeGzip(t, text), squeezeGzip(t, text[:n/2])), n / 2},
		"gzip, an empty end":       {source.TarGzip, join(squeezeGzip(t, text), squeezeGzip(t, nil)), 0},
		"gzip, with garbage":       {source.TarGzip, join(squeezeGzip(t, text[:1000]), []byte("\xff\xff\xff\xff")), 0},
		"gzip, truncated":          {source.TarGzip, join(squeezeGzip(t, text), []byte("\x01\x00\x10\x00")), 0},
		"gzip, cut":                {source.TarGzip, []byte("\x1f\x8b\x08\xff\xff\xff"), 0},
		"bzip2":                    {source.TarBzip2, []byte("BZh91AY&SY whatever this is"), 0},
	} {
		got, by, err := MinUnpacked(bytes.NewReader(x.packed), x.kind, int64(len(x.packed)), x.packed[:min(source.BlockSize, len(x.packed))])
		if want := max(x.want, int64(len(x.packed)-len(x.packed)/stretch)); got != want || by == "" || err != nil {
			t.Errorf("%s: MinUnpacked() = %d, %q, %v, want %d", name, got, by, err, want)
		}
	}
}

// TestMinUnpackedOfPrograms: common programs enlarge random bytes by no more than MinUnpacked assumes, and the sizes
// they state are right.
func TestMinUnpackedOfPrograms(t *testing.T) {
	const s = 42
	t.Logf("seed %d", s)
	b := make([]byte, 300_000)
	r := rand.NewChaCha8([32]byte{s})
	_, _ = r.Read(b) // cannot fail
	for _, x := range []struct {
		kind source.Kind
		args []string
	}{
		{source.TarGzip, []string{"gzip", "-c"}}, {source.TarGzip, []string{"pigz", "-c", "-p2", "-R"}}, {source.TarGzip, []string{"bgzip", "-c"}},
		{source.TarZstd, []string{"zstd", "-c"}}, {source.TarZstd, []string{"pzstd", "-c"}},
		{source.TarXz, []string{"xz", "-c"}}, {source.TarXz, []string{"xz", "-c", "--block-size=10000"}},
		{source.TarBzip2, []string{"bzip2", "-c"}}, {source.TarBzip2, []string{"bzip2", "-1", "-c"}}, {source.TarBzip2, []string{"pbzip2", "-c", "-b1"}},
	} {
		t.Run(fmt.Sprint(x.args), func(t *testing.T) {
			path, err := exec.LookPath(x.args[0])
			if err != nil {
				t.Skipf("no %s program", x.args[0])
			}
			cmd := exec.Command(path, x.args[1:]...)
			cmd.Stdin = bytes.NewReader(b)
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			got, by, err := MinUnpacked(bytes.NewReader(out), x.kind, int64(len(out)), out[:source.BlockSize])
			if n := int64(len(b)); err != nil || got > n || got < n-n/stretch {
				t.Errorf("MinUnpacked() = %d, %q, %v of %d bytes that are packed as %d", got, by, err, n, len(out))
			}
		})
	}
}

// FuzzMinUnpacked: no end of an archive causes an error or an impossible size.
func FuzzMinUnpacked(f *testing.F) {
	f.Add([]byte("YZ"), byte(0))
	f.Add([]byte("\x28\xb5\x2f\xfd\x24\x05\x29\x00\x00hello\x00\x00\x00\x00\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00x"), byte(1))
	f.Fuzz(func(t *testing.T, b []byte, k byte) {
		kind := []source.Kind{source.TarXz, source.TarZstd, source.TarGzip, source.TarBzip2}[k%4]
		if n, by, err := MinUnpacked(bytes.NewReader(b), kind, int64(len(b)), b[:min(source.BlockSize, len(b))]); err != nil || n < 0 {
			t.Errorf("MinUnpacked() = %d, %q, %v", n, by, err)
		}
	})
}
