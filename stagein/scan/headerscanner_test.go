package scan

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// hopsOf scans an archive in n stretches and returns the twin's tree of what it found, and the bytes read. With exact,
// the scan need not read whole pages.
func hopsOf(t *testing.T, archive []byte, n int64, exact bool) (map[string]stageintest.Entry, int64, error) {
	t.Helper()
	fs := stageintest.NewFS()
	fs.Add("/a.tar", source.TypeRegular|0o644, archive)
	f, err := fs.Open("/a.tar")
	if err != nil {
		t.Fatal(err)
	}
	h := &headerScanner{f: f, name: "/a.tar", size: int64(len(archive)), room: &manifest.Scratch{}, exact: exact}
	found, _, err := h.scan(context.Background(), n)
	if err != nil {
		return nil, 0, err
	}
	defer found.close()
	items, err := inMemory(found)
	if err != nil {
		return nil, 0, err
	}
	if got := h.read.Load(); got != fs.Read.Load() {
		t.Errorf("%d bytes were read, %d counted", fs.Read.Load(), got)
	}
	tree := map[string]stageintest.Entry{}
	for i := range items {
		it := &items[i]
		e := stageintest.Entry{Mode: it.Mode & stagein.KeptBits, Mtime: it.Mtime, Target: it.Target, Link: it.Hardlink}
		if it.Hardlink == "" && it.Is(source.TypeRegular) {
			e.Size, e.Data = it.Size, string(archive[it.Off:it.Off+it.Size])
		}
		if old, ok := tree[it.Path]; ok && (!it.Is(source.TypeDir) || old.Mode&source.TypeMask != source.TypeDir) {
			return nil, 0, syscall.EEXIST
		}
		tree[it.Path] = e
	}
	return tree, h.read.Load(), nil
}

// TestHopsEqualTwin: with any number of stretches, the scan finds what archive/tar finds.
func TestHopsEqualTwin(t *testing.T) {
	r := stageintest.Rand(t)
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX} {
		for range 30 {
			archive := stageintest.WriteTar(t, format, stageintest.RandomMembers(r, format, 1+r.IntN(60)))
			want, err := stageintest.TwinTar(archive)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int64{1, 2, 3, 7, 40} {
				got, _, err := hopsOf(t, archive, n, n%2 == 1)
				if err != nil {
					t.Fatalf("%v, %d stretches: %v", format, n, err)
				}
				stageintest.CheckTree(t, got, want)
			}
		}
	}
}

// TestHopsOverTarInTar: headers inside a member's data are not taken for members.
func TestHopsOverTarInTar(t *testing.T) {
	r := stageintest.Rand(t)
	inner := stageintest.WriteTar(t, tar.FormatUSTAR, stageintest.RandomMembers(r, tar.FormatUSTAR, 300))
	members := []stageintest.Member{stageintest.TarFile("before", stageintest.RandBytes(r, 3000)), stageintest.TarFile("inner.tar", inner), stageintest.TarFile("after", stageintest.RandBytes(r, 5000))}
	archive := stageintest.WriteTar(t, tar.FormatUSTAR, members)
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	for n := int64(1); n < 30; n++ {
		got, _, err := hopsOf(t, archive, n, n%2 == 1)
		if err != nil {
			t.Fatalf("%d stretches: %v", n, err)
		}
		stageintest.CheckTree(t, got, want)
	}
}

// TestHopsReadHeaders: a scan reads only the headers and the end, and a little more where stretches begin.
func TestHopsReadHeaders(t *testing.T) {
	r := stageintest.Rand(t)
	var members []stageintest.Member
	for i := range 100 {
		members = append(members, stageintest.TarFile(string(rune('a'+i%26))+string(rune('a'+i/26)), stageintest.RandBytes(r, 50_000)))
	}
	archive := stageintest.WriteTar(t, tar.FormatUSTAR, members)
	for exact, each := range map[bool]int64{false: stagein.PageSize, true: source.BlockSize} {
		for _, n := range []int64{1, 4} {
			_, read, err := hopsOf(t, archive, n, exact)
			if err != nil {
				t.Fatal(err)
			}
			if most := 100*each + 10<<10 + (n-1)*(60<<10); read > most {
				t.Errorf("%d stretches, exact %v: %d bytes were read of %d, want %d at the most", n, exact, read, len(archive), most)
			}
		}
	}
}

// TestHopsRefuse: a scan reports faults of an archive as a full read does.
func TestHopsRefuse(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{stageintest.TarFile("a", stageintest.RandBytes(r, 3000)), stageintest.TarFile("b", stageintest.RandBytes(r, 9000))})
	two := append(bytes.Clone(archive), archive...)
	for name, c := range map[string]struct {
		archive []byte
		want    string
	}{
		"cut in a member": {archive[:6000], `inside member "b"`},
		"cut in a header": {archive[:3700], "inside the headers"},
		"two":             {two, "another begins after it"},
		"nothing":         {make([]byte, 10240), "no members"},
		"a header gone":   {append(append(bytes.Clone(archive[:3584]), bytes.Repeat([]byte{1}, 512)...), archive[4096:]...), "no header"},
	} {
		for _, n := range []int64{1, 3} {
			if _, _, err := hopsOf(t, c.archive, n, n > 1); !stageintest.ErrorHas(err, c.want) {
				t.Errorf("%s, %d stretches: %v, want %q", name, n, err, c.want)
			}
		}
	}
}

// FuzzHops scans corrupted archives: a scan without an error finds what archive/tar finds, with any number of
// stretches.
func FuzzHops(f *testing.F) {
	for i := range 16 {
		f.Add(uint64(i), uint16(0), uint16(i), uint8(i), i%2 == 0)
		f.Add(uint64(i), uint16(i*700+1), uint16(0), uint8(i), false)
	}
	f.Fuzz(func(t *testing.T, s uint64, cut, flips uint16, n uint8, honest bool) {
		r := rand.New(rand.NewPCG(s, 2))
		format := []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX}[r.IntN(3)]
		archive := stageintest.Spoil(stageintest.WriteTar(t, format, stageintest.RandomMembers(r, format, 1+r.IntN(12))), cut, flips, r, honest)
		one, _, err1 := hopsOf(t, archive, 1, false)
		many, _, errN := hopsOf(t, archive, 2+int64(n%6), n%2 == 0)
		if (err1 == nil) != (errN == nil) {
			t.Fatalf("one stretch: %v; several: %v", err1, errN)
		}
		if err1 != nil {
			return
		}
		stageintest.CheckTree(t, many, one)
		want, err := stageintest.TwinTar(archive)
		if errors.Is(err, syscall.EEXIST) {
			return // the manifest refuses these
		}
		if err != nil {
			t.Fatalf("scanned, but archive/tar says: %v", err)
		}
		stageintest.CheckTree(t, one, want)
	})
}

// TestHopsBound: the memory of a scan does not grow with the number of members.
func TestHopsBound(t *testing.T) {
	const stretches, block = 8, 16 << 10
	for _, n := range []int{1000, 30_000} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := range n {
			stageintest.NoError(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("class/%08d", i), Mode: 0o644, Format: tar.FormatUSTAR}))
		}
		stageintest.NoError(t, w.Close())
		fs, room := stageintest.NewFS(), &manifest.Scratch{Dir: t.TempDir()}
		fs.Add("/a.tar", source.TypeRegular|0o644, b.Bytes())
		f, err := fs.Open("/a.tar")
		stageintest.NoError(t, err)
		h := &headerScanner{f: f, name: "/a.tar", size: int64(b.Len()), room: room}
		found, _, err := h.scan(context.Background(), stretches)
		stageintest.NoError(t, err)
		i := 0
		stageintest.NoError(t, found.each(func(it *source.Item) error {
			if want := fmt.Sprintf("class/%08d", i); it.Path != want {
				return fmt.Errorf("member %d is %q, want %q", i, it.Path, want)
			}
			i++
			return nil
		}))
		if i != n || found.count() != n {
			t.Errorf("%d members, %d counted, want %d", i, found.count(), n)
		}
		if most := int64(stretches * block); room.Peak() > most || room.Peak() == 0 {
			t.Errorf("%d members: %d bytes were in memory, want %d at the most", n, room.Peak(), most)
		}
		found.close()
	}
}
