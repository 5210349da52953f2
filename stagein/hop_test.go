package stagein

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
	"github.com/bivouacfs/bivouac/stagein/source"
)

// hopsOf is what a scan in n stretches finds in an archive, as the tree of the
// twin, and how many bytes it read for that. exact is that pages need not be read whole.
func hopsOf(t *testing.T, archive []byte, n int64, exact bool) (map[string]entry, int64, error) {
	t.Helper()
	fs := newFS()
	fs.add("/a.tar", source.TypeRegular|0o644, archive)
	f, err := fs.Open("/a.tar")
	if err != nil {
		t.Fatal(err)
	}
	h := &hopper{f: f, name: "/a.tar", size: int64(len(archive)), room: &manifest.Scratch{}, exact: exact}
	found, _, err := h.scan(context.Background(), n)
	if err != nil {
		return nil, 0, err
	}
	defer found.close()
	items, err := inMemory(found)
	if err != nil {
		return nil, 0, err
	}
	if got := h.read.Load(); got != fs.read.Load() {
		t.Errorf("%d bytes were read, %d counted", fs.read.Load(), got)
	}
	tree := map[string]entry{}
	for i := range items {
		it := &items[i]
		e := entry{Mode: it.Mode & keptBits, Mtime: it.Mtime, Target: it.Target, Link: it.Hardlink}
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

// TestHopsEqualTwin: whatever the number of stretches, the scan finds what
// archive/tar finds.
func TestHopsEqualTwin(t *testing.T) {
	r := seed(t)
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX} {
		for range 30 {
			archive := writeTar(t, format, randomMembers(r, format, 1+r.IntN(60)))
			want, err := twin(archive)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int64{1, 2, 3, 7, 40} {
				got, _, err := hopsOf(t, archive, n, n%2 == 1)
				if err != nil {
					t.Fatalf("%v, %d stretches: %v", format, n, err)
				}
				checkTree(t, got, want)
			}
		}
	}
}

// TestHopsOverTarInTar: headers in a member's data are no members.
func TestHopsOverTarInTar(t *testing.T) {
	r := seed(t)
	inner := writeTar(t, tar.FormatUSTAR, randomMembers(r, tar.FormatUSTAR, 300))
	members := []member{file("before", randBytes(r, 3000)), file("inner.tar", inner), file("after", randBytes(r, 5000))}
	archive := writeTar(t, tar.FormatUSTAR, members)
	want, err := twin(archive)
	if err != nil {
		t.Fatal(err)
	}
	for n := int64(1); n < 30; n++ {
		got, _, err := hopsOf(t, archive, n, n%2 == 1)
		if err != nil {
			t.Fatalf("%d stretches: %v", n, err)
		}
		checkTree(t, got, want)
	}
}

// TestHopsReadHeaders: a scan reads the headers and the end, and where stretches
// begin a little more.
func TestHopsReadHeaders(t *testing.T) {
	r := seed(t)
	var members []member
	for i := range 100 {
		members = append(members, file(string(rune('a'+i%26))+string(rune('a'+i/26)), randBytes(r, 50_000)))
	}
	archive := writeTar(t, tar.FormatUSTAR, members)
	for exact, each := range map[bool]int64{false: pageSize, true: source.BlockSize} {
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

// TestHopsRefuse: what is wrong with an archive is said as when it is read.
func TestHopsRefuse(t *testing.T) {
	r := seed(t)
	archive := writeTar(t, tar.FormatUSTAR, []member{file("a", randBytes(r, 3000)), file("b", randBytes(r, 9000))})
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
			if _, _, err := hopsOf(t, c.archive, n, n > 1); !errorHas(err, c.want) {
				t.Errorf("%s, %d stretches: %v, want %q", name, n, err, c.want)
			}
		}
	}
}

// FuzzHops scans spoilt archives: what is found without an error is what
// archive/tar finds, whatever the number of stretches.
func FuzzHops(f *testing.F) {
	for i := range 16 {
		f.Add(uint64(i), uint16(0), uint16(i), uint8(i), i%2 == 0)
		f.Add(uint64(i), uint16(i*700+1), uint16(0), uint8(i), false)
	}
	f.Fuzz(func(t *testing.T, s uint64, cut, flips uint16, n uint8, honest bool) {
		r := rand.New(rand.NewPCG(s, 2))
		format := []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX}[r.IntN(3)]
		archive := spoil(writeTar(t, format, randomMembers(r, format, 1+r.IntN(12))), cut, flips, r, honest)
		one, _, err1 := hopsOf(t, archive, 1, false)
		many, _, errN := hopsOf(t, archive, 2+int64(n%6), n%2 == 0)
		if (err1 == nil) != (errN == nil) {
			t.Fatalf("one stretch: %v; several: %v", err1, errN)
		}
		if err1 != nil {
			return
		}
		checkTree(t, many, one)
		want, err := twin(archive)
		if errors.Is(err, syscall.EEXIST) {
			return // for the manifest to refuse
		}
		if err != nil {
			t.Fatalf("scanned, but archive/tar says: %v", err)
		}
		checkTree(t, one, want)
	})
}

// TestHopsBound: what a scan keeps in memory does not grow with the members.
func TestHopsBound(t *testing.T) {
	const stretches, block = 8, 16 << 10
	for _, n := range []int{1000, 30_000} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := range n {
			check(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("class/%08d", i), Mode: 0o644, Format: tar.FormatUSTAR}))
		}
		check(t, w.Close())
		fs, room := newFS(), &manifest.Scratch{Dir: t.TempDir()}
		fs.add("/a.tar", source.TypeRegular|0o644, b.Bytes())
		f, err := fs.Open("/a.tar")
		check(t, err)
		h := &hopper{f: f, name: "/a.tar", size: int64(b.Len()), room: room}
		found, _, err := h.scan(context.Background(), stretches)
		check(t, err)
		i := 0
		check(t, found.each(func(it *source.Item) error {
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
