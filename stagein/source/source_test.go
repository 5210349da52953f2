package source

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

func TestCleanPath(t *testing.T) {
	for name, want := range map[string]string{
		"a": "a", "./a": "a", "a/": "a", "a//b": "a/b", "a/./b": "a/b", "./": "", ".": "", "": "", "a/.": "a", "..a/b..": "..a/b..", "a/...": "a/...",
	} {
		if got, err := CleanPath(name); got != want || err != nil {
			t.Errorf("CleanPath(%q) = %q, %v, want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"/", "/a", "..", "../a", "a/..", "a/../b", "a\x00b", strings.Repeat("n", 256), strings.Repeat("n/", 20000)} {
		if got, err := CleanPath(name); err == nil {
			t.Errorf("CleanPath(%.20q) = %q", name, got)
		}
	}
}

func TestNumeric(t *testing.T) {
	for s, want := range map[string]int64{
		"0000644\x00": 0o644, "   644 \x00": 0o644, "": 0, "\x00\x00": 0, "77777777777": 0o77777777777,
		"\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00": 256,
		"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe": -2,
		"\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff": math.MaxInt64,
	} {
		if got, err := numeric([]byte(s)); got != want || err != nil {
			t.Errorf("numeric(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"8", "x", "-1", "1 2", "\x80\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00\x00", "\x81\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"} {
		if got, err := numeric([]byte(s)); err == nil {
			t.Errorf("numeric(%q) = %d", s, got)
		}
	}
}

func TestPAXTime(t *testing.T) {
	for s, want := range map[string]metadata.Time{
		"1": 1e9, "1.5": 15e8, "-1.5": -15e8, "0.000000001": 1, "1.0000000019": 1e9 + 1, "-0.5": -5e8,
	} {
		if got, err := paxTime(s); got != want || err != nil {
			t.Errorf("paxTime(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "x", "1.x", "1.2.3", ".5", "1e3"} {
		if got, err := paxTime(s); err == nil {
			t.Errorf("paxTime(%q) = %d", s, got)
		}
	}
	if got, err := paxTime("99999999999999"); err != nil || got < math.MaxInt64/2 {
		t.Errorf("a time that does not fit = %d, %v", got, err)
	}
}

func TestPAXRecords(t *testing.T) {
	keep := func(string, string) error { return nil }
	for _, bad := range []string{"x", "5 a=b", "6 a=b\n\n", "4 =\n", "99 a=b\n", "-1 a=b\n", "8 noeq\n", "6 \x00=b\n", "0 a=b\n", "12", "3 \n"} {
		if err := paxRecords([]byte(bad), keep); err == nil {
			t.Errorf("paxRecords(%q) is taken", bad)
		}
	}
	var o overrides
	if err := paxRecords([]byte("6 a=b\n15 path=a=b\n/c\n9 size=5\n"), o.pax); err != nil || o.path != "a=b\n/c" || *o.size != 5 {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestGroupBigSize is a member whose size octal digits have no room for.
func TestGroupBigSize(t *testing.T) {
	for _, format := range []tar.Format{tar.FormatGNU, tar.FormatPAX} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		h := &tar.Header{Name: "big", Size: 1 << 40, Format: format, ModTime: time.Unix(5, 0)}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		var g Group
		for block := range slices.Chunk(b.Bytes(), BlockSize) {
			step, err := g.Add(block)
			if err != nil {
				t.Fatal(err)
			}
			if (step == Member) != (g.Pos() == int64(b.Len())) {
				t.Errorf("%v: step %d at %d", format, step, g.Pos())
			}
		}
		if g.Item.Size != 1<<40 || g.Item.Off != int64(b.Len()) || g.Item.Path != "big" {
			t.Errorf("%v: %+v", format, g.Item)
		}
		if !bytes.Equal(g.Raw(), b.Bytes()) {
			t.Errorf("%v: the group remembers other bytes", format)
		}
	}
}

func TestGroupBoundsExtensions(t *testing.T) {
	var g Group
	b := make([]byte, BlockSize)
	copy(b, "name")
	copy(b[257:], "ustar\x0000")
	copy(b[124:], "77777777")
	b[156] = 'x'
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	if _, err := g.Add(b); err == nil || !errors.Is(err, syscall.EBADMSG) {
		t.Errorf("%v, want EBADMSG", err)
	}
}

func FuzzGroup(f *testing.F) {
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		_ = w.WriteHeader(&tar.Header{Name: "d/" + strings.Repeat("n", 90), Size: 3, Format: format})
		f.Add(b.Bytes())
	}
	for _, more := range []bool{false, true} {
		f.Add(sparseHeader(more, false))
		f.Add(sparseHeader(more, true))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var g Group
		for len(b) >= BlockSize {
			// The sum is made right, or nothing would get past it.
			block := bytes.Clone(b[:BlockSize])
			copy(block[148:], "        ")
			sum := 0
			for _, c := range block {
				sum += int(c)
			}
			copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
			step, err := g.Add(block)
			if err != nil {
				return
			}
			if step == Member {
				if p, err := CleanPath(g.Item.Path); err != nil || p != g.Item.Path || g.Item.Size < 0 {
					t.Fatalf("%+v: %v", g.Item, err)
				}
				if m := g.Item.Sparse; m != nil && (m.Check() != nil || m.Size != g.Item.Size || g.Item.Head > MaxHeaders) {
					t.Fatalf("%+v: a map that does not add up: %+v", g.Item, m)
				}
			}
			if step != More {
				g.Reset(g.Pos())
			}
			b = b[BlockSize:]
		}
	})
}

func TestItemJSON(t *testing.T) {
	for _, it := range []Item{
		{}, {Path: "a", Mode: 0o100644, Size: 5, Mtime: -3, Off: 7}, {Path: "\xff", Target: "<\xfe>", Hardlink: "&\u2028"}, {Path: `{"bytes":"x"}`},
	} {
		b, err := json.Marshal(it)
		var got Item
		if err == nil {
			err = json.Unmarshal(b, &got)
		}
		if err != nil || got != it {
			t.Errorf("%+v through %s = %+v, %v", it, b, got, err)
		}
	}
}

func TestRegionReadsOnce(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	for _, depth := range []int{1, 3, 8} {
		pool := NewPool(4, 1024)
		r := ReadRegion(context.Background(), bytes.NewReader(data), "f", 512, int64(len(data)), pool, depth)
		got := []byte{}
		for {
			for n := len(got) % 3; n > 0; n-- {
				_ = r.Ready() // or not: who asks changes nothing
			}
			p, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil || p.Off != int64(512+len(got)) {
				t.Fatalf("piece at %d, %v", p.Off, err)
			}
			got = append(got, p.B...)
			p.Release()
		}
		r.Close()
		if !bytes.Equal(got, data[512:]) || pool.Out() != 0 {
			t.Errorf("depth %d: %d bytes, %d buffers out", depth, len(got), pool.Out())
		}
		// Closed in the middle, and of a file that is too short.
		r = ReadRegion(context.Background(), bytes.NewReader(data), "f", 0, int64(len(data)), pool, depth)
		if p, err := r.Next(); err != nil {
			t.Error(err)
		} else {
			p.Release()
		}
		r.Close()
		r = ReadRegion(context.Background(), bytes.NewReader(data[:100]), "f", 0, 200, pool, depth)
		if _, err := r.Next(); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("%v, want ESTALE", err)
		}
		r.Close()
		if pool.Out() != 0 {
			t.Errorf("%d buffers out", pool.Out())
		}
	}
}

// TestRegionReady: a read that is over, and the end, are not to be waited for; a
// read that goes on is.
func TestRegionReady(t *testing.T) {
	let, began := make(chan struct{}), make(chan struct{}, 8)
	f := readerFunc(func(p []byte, off int64) (int, error) {
		began <- struct{}{}
		<-let
		return len(p), nil
	})
	r := ReadRegion(context.Background(), f, "f", 0, 100, NewPool(1, 1024), 2)
	defer r.Close()
	<-began
	if r.Ready() {
		t.Error("a read that goes on is said to be over")
	}
	close(let)
	p, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	p.Release()
	if _, err := r.Next(); err != io.EOF || !r.Ready() {
		t.Errorf("at the end: %v, ready %v", err, r.Ready())
	}
}

type readerFunc func(p []byte, off int64) (int, error)

func (f readerFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

func TestOSWalk(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "a/b"), 0o755),
		os.WriteFile(filepath.Join(dir, "a/b/f"), []byte("hello"), 0o640),
		os.Link(filepath.Join(dir, "a/b/f"), filepath.Join(dir, "a/hard")),
		os.Symlink("../..", filepath.Join(dir, "a/b/up")),
		os.Symlink(dir, filepath.Join(dir, "self")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 600 {
		if err := os.WriteFile(filepath.Join(dir, "a", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var first []Item
	for _, workers := range []int{1, 2, 16} {
		items, err := Walk(context.Background(), OS{}, dir, workers)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = items
		}
		if !reflect.DeepEqual(items, first) {
			t.Errorf("%d workers find another tree", workers)
		}
	}
	byPath := map[string]Item{}
	for _, it := range first {
		byPath[it.Path] = it
	}
	if len(byPath) != 607 || len(first) != 607 || byPath[""].Mode&TypeMask != TypeDir || byPath["a/b/f"].Size != 5 || byPath["a/b/f"].Mode != TypeRegular|0o640 ||
		byPath["a/hard"].Hardlink != "a/b/f" || byPath["a/b/up"].Target != "../.." || byPath["self"].Target != dir {
		t.Errorf("%d items: %+v", len(first), byPath)
	}
	if _, err := (OS{}).Open(filepath.Join(dir, "self")); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("open of a link: %v", err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "a/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (OS{}).Open(filepath.Join(dir, "a/pipe")); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("open of a FIFO: %v", err)
	}
	if _, err := Walk(context.Background(), OS{}, dir, 4); err == nil || !strings.Contains(err.Error(), "a/pipe: is a FIFO") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Walk(ctx, OS{}, dir, 4); err == nil {
		t.Error("a walk that was cancelled ended well")
	}
}

// sparseHeader is the header of a sparse file as GNU tar or star writes it, with
// a block of more entries behind it.
func sparseHeader(more, star bool) []byte {
	b := make([]byte, 2*BlockSize)
	copy(b, "holes")
	copy(b[124:], "00000000012 ")
	copy(b[156:], "S")
	at, size := gnuSparse, gnuSize
	copy(b[257:], "ustar  \x00")
	if star {
		at, size = starSparse, starSize
		copy(b[257:], "ustar\x0000")
		copy(b[508:], "tar\x00")
	}
	copy(b[size:], "00000010000 ")
	copy(b[at:], "00000000000 00000000005 00000001000 00000000005 ")
	if more {
		copy(b[at+24:], "00000001000 00000000002 ")
		copy(b[BlockSize:], "00000002000 00000000003 ")
		b[map[bool]int{false: gnuMore, true: starMore}[star]] = 1
	}
	return b
}

// TestSparseMap: the bytes of the data and those of the file are told from each
// other wherever one looks; compared with a map of single bytes.
func TestSparseMap(t *testing.T) {
	for _, pairs := range [][]int64{nil, {0, 3}, {4, 2}, {0, 2, 5, 1, 6, 3, 12, 1}, {3, 0, 3, 4, 10, 0}, {14, 1}} {
		const size = 15
		var stored int64
		var at []int64 // of each byte of the data, in the file
		for i := 0; i < len(pairs); i += 2 {
			stored += pairs[i+1]
			for k := range pairs[i+1] {
				at = append(at, pairs[i]+k)
			}
		}
		m, err := NewSparse(pairs, size, stored)
		if err != nil {
			t.Fatalf("NewSparse(%v): %v", pairs, err)
		}
		for pos := range int64(size) {
			if got, want := m.Data(pos), slices.Contains(at, pos); got != want {
				t.Errorf("%v: Data(%d) = %v", pairs, pos, got)
			}
			for end := pos; end <= size; end++ {
				from, to := m.Within(pos, end)
				var want []int64
				for i, p := range at {
					if p >= pos && p < end {
						want = append(want, int64(i))
					}
				}
				if to-from != int64(len(want)) || len(want) > 0 && from != want[0] {
					t.Errorf("%v: Within(%d, %d) = %d, %d, want %v", pairs, pos, end, from, to, want)
				}
			}
		}
		for a := range stored {
			for n := int64(1); a+n <= stored; n++ {
				var got []int64
				err := m.Pour(a, make([]byte, n), func(b []byte, pos int64) error {
					for i := range b {
						got = append(got, pos+int64(i))
					}
					return nil
				})
				if err != nil || !slices.Equal(got, at[a:a+n]) {
					t.Errorf("%v: Pour(%d, %d) = %v, %v, want %v", pairs, a, n, got, err, at[a:a+n])
				}
				if _, end := m.Span(a, n); a+n < stored {
					if next, _ := m.Span(a+n, 1); next != end {
						t.Errorf("%v: Span(%d, %d) ends at %d, the next begins at %d", pairs, a, n, end, next)
					}
				}
			}
		}
	}
}

// TestCloseOfRead: a descriptor is closed when the last read of it has ended, and not
// used by any that comes later: its number may be another file's by then.
func TestCloseOfRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := OS{}.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f := file.(*osFile)
	if err := f.use(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		t.Errorf("closed with a read under way, the descriptor is gone: %v", err)
	}
	if _, err := f.ReadAt(make([]byte, 4), 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a read after Close: %v, want %v", err, fs.ErrClosed)
	}
	if _, err := f.Stat(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Stat after Close: %v, want %v", err, fs.ErrClosed)
	}
	if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Close after Close: %v, want %v", err, fs.ErrClosed)
	}
	if err := f.done(); err != nil {
		t.Errorf("the last read's end: %v", err)
	}
}
