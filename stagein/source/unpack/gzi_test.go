package unpack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// bgzfFile makes blocks of b of each bytes, and the index of them.
func bgzfFile(t testing.TB, b []byte, each int) (packed, gzi []byte) {
	t.Helper()
	gzi = make([]byte, gziHead)
	for at := 0; ; at += each {
		n := min(each, max(len(b)-at, 0))
		if at > 0 && n > 0 {
			gzi = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(gzi, uint64(len(packed))), uint64(at))
		}
		packed = append(packed, bgzf(t, b[min(at, len(b)):][:n], nil)...)
		if n == 0 {
			binary.LittleEndian.PutUint64(gzi, uint64(len(gzi)/gziEntry))
			return packed, gzi
		}
	}
}

func leastBGZF(packed, gzi []byte) (int64, error) {
	return LeastBGZF(bytes.NewReader(packed), int64(len(packed)), bytes.NewReader(gzi), int64(len(gzi)))
}

// TestLeastBGZF: an index of blocks tells what they unpack to, and is not believed if it is
// none of this file.
func TestLeastBGZF(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, 300_000)
	for i := range text {
		text[i] = "some text"[r.IntN(9)]
	}
	n := int64(len(text))
	packed, gzi := bgzfFile(t, text, 5000)
	if !IsBGZF(packed) || IsBGZF(squeezeGzip(t, text)) {
		t.Fatal("blocks of BGZF are not told from a member of gzip")
	}
	ended := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(slices.Clone(gzi), uint64(len(packed)-len(bgzf(t, nil, nil)))), uint64(n))
	ended[0]++
	for name, b := range map[string][]byte{"as it is": gzi, "with the end": ended} {
		if got, err := leastBGZF(packed, b); got != n || err != nil {
			t.Errorf("%s: LeastBGZF() = %d, %v, want %d", name, got, err, n)
		}
	}
	small, none := bgzfFile(t, text[:100], 5000)
	if got, err := leastBGZF(small, none); got != 100 || err != nil {
		t.Errorf("one block: LeastBGZF() = %d, %v", got, err)
	}
	if got, err := leastBGZF(packed, append([]byte{20, 0, 0, 0, 0, 0, 0, 0}, gzi[gziHead:gziHead+20*gziEntry]...)); got != 21*5000 || err != nil {
		t.Errorf("an index of what the file was before: LeastBGZF() = %d, %v", got, err)
	}
	changed := func(at int, v uint64) []byte {
		b := slices.Clone(gzi)
		binary.LittleEndian.PutUint64(b[at:], v)
		return b
	}
	other, otherGzi := bgzfFile(t, text[1:], 4000)
	last := len(gzi) - gziEntry
	for name, b := range map[string][]byte{
		"empty": nil, "short": gzi[:7], "cut": gzi[:last], "no entries": none[:4],
		"another file's": otherGzi,
		"count":          changed(0, 1<<60), "a count of -1": changed(0, 1<<64-1),
		"a large end": changed(last+8, 1<<40), "a larger end": changed(last+8, uint64(n)), "a negative end": changed(last+8, 1<<63),
		"beyond the file": changed(last, 1<<40), "no block": changed(last, uint64(len(packed)-40)),
	} {
		if got, err := leastBGZF(packed, b); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: LeastBGZF() = %d, %v, want EIO", name, got, err)
		}
	}
	if got, err := leastBGZF(other, gzi); !errors.Is(err, syscall.EIO) {
		t.Errorf("of another file: LeastBGZF() = %d, %v, want EIO", got, err)
	}
	f := &countedReader{r: bytes.NewReader(packed)}
	if _, err := LeastBGZF(f, int64(len(packed)), bytes.NewReader(gzi), int64(len(gzi))); err != nil || f.bytes > 500 {
		t.Errorf("%d bytes were read of the file, %v", f.bytes, err)
	}
}

// TestLeastOfBgzip: the index that bgzip makes is believed.
func TestLeastOfBgzip(t *testing.T) {
	if _, err := exec.LookPath("bgzip"); err != nil {
		t.Skip("no bgzip program")
	}
	for _, n := range []int{1, 65_280, 65_281, 700_000} {
		path := filepath.Join(t.TempDir(), "a")
		if err := os.WriteFile(path, make([]byte, n), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"-i", path}, {"-r", path + ".gz"}} {
			if out, err := exec.Command("bgzip", args...).CombinedOutput(); err != nil {
				t.Fatalf("bgzip %q: %v: %s", args, err, out)
			}
			packed, err := os.ReadFile(path + ".gz")
			if err != nil {
				t.Fatal(err)
			}
			gzi, err := os.ReadFile(path + ".gz" + GziSuffix)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := leastBGZF(packed, gzi); got != int64(n) || err != nil || !IsBGZF(packed) {
				t.Errorf("bgzip %s of %d bytes: LeastBGZF() = %d, %v", args[0], n, got, err)
			}
		}
	}
}

// FuzzLeastBGZF: no index makes it panic, or say a size that no file of the size can have.
func FuzzLeastBGZF(f *testing.F) {
	packed, gzi := bgzfFile(f, bytes.Repeat([]byte("text"), 1000), 100)
	f.Add(packed, gzi)
	f.Add(packed[50:], gzi[:8])
	f.Fuzz(func(t *testing.T, packed, gzi []byte) {
		if n, err := leastBGZF(packed, gzi); n < 0 && err == nil || n > int64(len(packed))/bgzfLeast*bgzfMost && err == nil {
			t.Errorf("LeastBGZF() = %d, %v of %d bytes", n, err, len(packed))
		}
	})
}
