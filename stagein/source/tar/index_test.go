package tar

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// indexed returns an archive and its members as parsed from the headers.
func indexed(t testing.TB, n int) (archive []byte, items []source.Item, key IndexKey) {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(n), 5))
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		h := tar.Header{Name: fmt.Sprintf("d/%s%d", strings.Repeat("x", r.IntN(200)), i), Typeflag: tar.TypeReg, Mode: 0o640, ModTime: time.Unix(r.Int64N(1<<31), 0)}
		switch r.IntN(7) {
		case 0:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case 1:
			h.Typeflag, h.Linkname = tar.TypeSymlink, "to"
		case 2:
			h.Typeflag, h.Linkname = tar.TypeLink, "d/other"
		default:
			h.Size = int64(r.IntN(3000))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	archive = b.Bytes()
	var g Parser
	for at, end := 0, int64(0); ; at += source.BlockSize {
		step, err := g.Add(archive[at : at+source.BlockSize])
		if err != nil {
			t.Fatal(err)
		}
		if step == End {
			break
		}
		if step != Member {
			continue
		}
		it := g.Item
		it.Head = it.Off - end
		items = append(items, it)
		end = it.Off + source.Padded(it.Stored())
		at = int(end) - source.BlockSize
		g.Reset(end)
	}
	key, err := KeyOf(bytes.NewReader(archive), "a.tar", source.Info{Size: int64(len(archive)), Mtime: 12345})
	if err != nil {
		t.Fatal(err)
	}
	return archive, items, key
}

func indexOf(t testing.TB, k IndexKey, items []source.Item) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := WriteIndex(&b, k, eachOf(items)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func readIndex(b []byte, k IndexKey) ([]source.Item, error) {
	var items []source.Item
	if err := ReadIndex(bytes.NewReader(b), int64(len(b)), k, func(it *source.Item) error {
		items = append(items, *it)
		return nil
	}); err != nil {
		return nil, err
	}
	return items, nil
}

// TestIndexRoundTrip: an index is read as it was written, and agrees with every member's headers.
func TestIndexRoundTrip(t *testing.T) {
	archive, items, k := indexed(t, 300)
	got, err := readIndex(indexOf(t, k, items), k)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		it := got[i]
		items[i].UID, items[i].GID, items[i].Check = 0, 0, Digest(&items[i])
		if !reflect.DeepEqual(it, items[i]) {
			t.Errorf("item %d = %+v, want %+v", i, it, items[i])
		}
		if err := CheckHead(archive[it.Off-it.Head:it.Off], it.Off, Digest(&it)); err != nil {
			t.Errorf("CheckHead of %q = %v", it.Path, err)
		}
		it.Path += "x"
		if err := CheckHead(archive[it.Off-it.Head:it.Off], it.Off, Digest(&it)); !errors.Is(err, syscall.EBADMSG) {
			t.Errorf("CheckHead of another name than %q = %v, want EBADMSG", items[i].Path, err)
		}
	}
}

// TestIndexKey: an index is accepted only for the current state of its archive.
func TestIndexKey(t *testing.T) {
	archive, items, k := indexed(t, 200)
	b := indexOf(t, k, items)
	other := slices.Clone(archive)
	other[len(other)-5000]++ // in the last member
	for name, change := range map[string]func() ([]byte, source.Info){
		"mtime": func() ([]byte, source.Info) { return archive, source.Info{Size: k.Size, Mtime: k.Mtime + 1} },
		"size":  func() ([]byte, source.Info) { return append(archive, 0), source.Info{Size: k.Size + 1, Mtime: k.Mtime} },
		"end":   func() ([]byte, source.Info) { return other, source.Info{Size: k.Size, Mtime: k.Mtime} },
	} {
		data, info := change()
		now, err := KeyOf(bytes.NewReader(data), "a.tar", info)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readIndex(b, now); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("%s: %v, want ESTALE", name, err)
		}
	}
	next := slices.Clone(b)
	next[7]++
	if _, err := readIndex(next, k); !errors.Is(err, syscall.ESTALE) || !strings.Contains(err.Error(), "version") {
		t.Errorf("another version: %v", err)
	}
}

// TestIndexDamaged: an index that is truncated or changed at any byte is rejected.
func TestIndexDamaged(t *testing.T) {
	_, items, k := indexed(t, 40)
	b := indexOf(t, k, items)
	for i := range b {
		if _, err := readIndex(b[:i], k); !errors.Is(err, syscall.EIO) {
			t.Fatalf("cut at %d of %d: %v, want EIO", i, len(b), err)
		}
		bad := slices.Clone(b)
		bad[i] ^= 1 << (i % 8)
		if _, err := readIndex(bad, k); err == nil {
			if got, _ := readIndex(bad, k); reflect.DeepEqual(got, must(readIndex(b, k))) {
				continue // an unused bit of the zstd format
			}
			t.Fatalf("changed at %d of %d: no error", i, len(b))
		}
	}
	if _, err := readIndex(append(slices.Clone(b), "more"...), k); !errors.Is(err, syscall.EIO) {
		t.Errorf("with something behind it: %v, want EIO", err)
	}
}

func must(items []source.Item, err error) []source.Item {
	if err != nil {
		panic(err)
	}
	return items
}

// TestIndexHostile: an index that no archive can have is rejected even with valid checksums.
func TestIndexHostile(t *testing.T) {
	_, items, k := indexed(t, 40)
	regular := slices.IndexFunc(items, func(it source.Item) bool { return it.Is(source.TypeRegular) && it.Size > 600 })
	for name, change := range map[string]func(all []source.Item) []source.Item{
		"none":   func([]source.Item) []source.Item { return nil },
		"device": func(all []source.Item) []source.Item { all[3].Mode = source.TypeBlock | 0o644; return all },
		"bits":   func(all []source.Item) []source.Item { all[3].Mode |= 1 << 20; return all },
		"no link": func(all []source.Item) []source.Item {
			all[3].Mode, all[3].Target = source.TypeSymlink|0o777, ""
			return all
		},
		"overlap":   func(all []source.Item) []source.Item { all[regular+1].Off -= all[regular+1].Head; return all },
		"twice":     func(all []source.Item) []source.Item { return slices.Insert(all, 3, all[3]) },
		"unaligned": func(all []source.Item) []source.Item { all[regular].Off++; return all },
		"beyond the end": func(all []source.Item) []source.Item {
			all[len(all)-1].Mode, all[len(all)-1].Size = source.TypeRegular, 1<<62
			return all
		},
		"huge offset": func(all []source.Item) []source.Item { all[len(all)-1].Off = 1<<63 - 512; return all },
		"long name":   func(all []source.Item) []source.Item { all[3].Path = strings.Repeat("x/", 5000) + "x"; return all },
	} {
		if _, err := readIndex(indexOf(t, k, change(slices.Clone(items))), k); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v, want EIO", name, err)
		}
	}
}

// TestCheckHeadOfHidden: headers that contain a member which the index omits are rejected.
func TestCheckHeadOfHidden(t *testing.T) {
	archive, items, _ := indexed(t, 60)
	for i := 1; i < len(items); i++ {
		if items[i-1].Size > 0 {
			continue
		}
		from := items[i-1].Off - items[i-1].Head
		if err := CheckHead(archive[from:items[i].Off], items[i].Off, Digest(&items[i])); !errors.Is(err, syscall.EBADMSG) {
			t.Errorf("with %q before %q: %v, want EBADMSG", items[i-1].Path, items[i].Path, err)
		}
	}
}

// FuzzReadIndex: no input causes a panic, or members that overlap or lie outside the archive.
func FuzzReadIndex(f *testing.F) {
	archive, items, k := indexed(f, 40)
	f.Add(indexOf(f, k, items))
	f.Add(indexOf(f, k, items[:1]))
	f.Add(k.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readIndex(b, k)
		if err != nil {
			return
		}
		end := int64(0)
		for _, it := range got {
			if it.Off-it.Head != end || it.Head < source.BlockSize || it.Size < 0 {
				t.Fatalf("%+v begins before %d, the end of the previous one", it, end)
			}
			end = it.Off + source.Padded(it.Stored())
			if path, err := source.CleanPath(it.Path); err != nil || path != it.Path {
				t.Fatalf("path %q", it.Path)
			}
		}
		if end > int64(len(archive)) {
			t.Fatalf("ends at %d of %d", end, len(archive))
		}
	})
}

func eachOf(items []source.Item) func(fn func(it *source.Item) error) error {
	return func(fn func(it *source.Item) error) error {
		for i := range items {
			if err := fn(&items[i]); err != nil {
				return err
			}
		}
		return nil
	}
}
