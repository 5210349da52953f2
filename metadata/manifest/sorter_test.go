package manifest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

type pair struct{ k, v string }

// sorted returns the expected result of sorting the pairs, computed naively.
func sorted(ps []pair) []pair {
	ps = slices.Clone(ps)
	slices.SortStableFunc(ps, func(a, b pair) int { return cmp.Compare(a.k, b.k) })
	return slices.CompactFunc(ps, func(a, b pair) bool { return a.k == b.k && a.v == "" && b.v == "" })
}

func collect(t *testing.T, o *sorter) []pair {
	t.Helper()
	var got []pair
	if err := o.each(func(k, v []byte) error {
		got = append(got, pair{string(k), string(v)})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestSorter: the order is that of a naive sort, whatever fits into memory; repeatedly; and nothing is left in the
// file.
func TestSorter(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, memory := range []int{0, 1, 300, 5000} {
		for _, n := range []int{0, 1, 2, 100, 3000} {
			s := &Scratch{Dir: t.TempDir(), Memory: memory}
			o := newSorter(s)
			var ps []pair
			for range n {
				p := pair{strings.Repeat("k", r.IntN(12)) + fmt.Sprint(r.IntN(n)), strings.Repeat("v", r.IntN(4)*r.IntN(9)*r.IntN(2))}
				ps = append(ps, p)
				if err := o.add([]byte(p.k), []byte(p.v)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if got, want := collect(t, o), sorted(ps); !slices.Equal(got, want) {
					t.Fatalf("%d pairs in %d bytes: got %d, want %d: %.200q, want %.200q", n, memory, len(got), len(want), got, want)
				}
			}
			o.close()
			if left, err := os.ReadDir(s.Dir); err != nil || len(left) > 0 || s.held.Load() != 0 {
				t.Errorf("%d pairs in %d bytes: left are %v, %v and %d bytes", n, memory, left, err, s.held.Load())
			}
		}
	}
}

// TestSorterBound: a hundred times as many pairs take no more memory.
func TestSorterBound(t *testing.T) {
	const longest = 60
	for _, memory := range []int{20_000, 200_000} {
		s := &Scratch{Dir: t.TempDir(), Memory: memory}
		for _, n := range []int{2_000, 200_000} {
			o, q := newSorter(s), queue{s: s}
			for i := range n {
				k := fmt.Appendf(nil, "a/long/path/of/%08d", i*7919%n)
				if err := errors.Join(o.add(k, k), q.push(string(k))); err != nil {
					t.Fatal(err)
				}
			}
			i := 0
			if err := o.each(func(k, _ []byte) error {
				if want := fmt.Appendf(nil, "a/long/path/of/%08d", i); !bytes.Equal(k, want) {
					return fmt.Errorf("%q, want %q", k, want)
				}
				i++
				_, err := q.pop()
				return err
			}); err != nil || i != n {
				t.Fatalf("%d of %d, %v", i, n, err)
			}
			o.close()
			q.close()
			if peak, most := s.peak.Load(), s.Bound(longest); peak > most || peak < int64(memory/2) {
				t.Errorf("%d pairs in %d bytes took %d, want at most %d", n, memory, peak, most)
			}
		}
		if s.held.Load() != 0 {
			t.Errorf("%d bytes are held at the end", s.held.Load())
		}
	}
}

// TestSorterStops: the consumer of the pairs may return an error; there may be no room to sort in.
func TestSorterStops(t *testing.T) {
	for _, memory := range []int{0, 100} {
		o := newSorter(&Scratch{Dir: t.TempDir(), Memory: memory})
		for i := range 100 {
			if err := o.add([]byte{byte(i)}, []byte("v")); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		if err := o.each(func(_, _ []byte) error { n++; return syscall.ENOSPC }); !errors.Is(err, syscall.ENOSPC) || n != 1 {
			t.Errorf("each stopped with %v after %d", err, n)
		}
		o.close()
	}
	o := newSorter(&Scratch{Dir: "/nowhere/at/all", Memory: 10})
	err := errors.Join(o.add([]byte("a"), nil), o.add([]byte("b"), nil), o.add([]byte("c"), nil))
	if !errors.Is(err, syscall.ENOENT) {
		t.Errorf("without a directory: %v", err)
	}
}

// TestMemory: the default is within the program's budget.
func TestMemory(t *testing.T) {
	if got := new(Scratch).Bound(64 << 10); got > Memory {
		t.Errorf("a sort takes up to %d bytes, %d are counted on", got, Memory)
	}
	if got := 256 * spoolBlock; got > Memory {
		t.Errorf("256 spools take up to %d bytes, %d are counted on", got, Memory)
	}
}

// TestQueue: first in, first out, however far apart the ends are.
func TestQueue(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	q := queue{s: &Scratch{Dir: t.TempDir(), Memory: 1}}
	var want []string
	for i := range 20_000 {
		if r.IntN(5) < 3 || i < 2000 {
			text := strings.Repeat("x", r.IntN(30)) + fmt.Sprint(i)
			if err := q.push(text); err != nil {
				t.Fatal(err)
			}
			want = append(want, text)
			continue
		}
		got, err := q.pop()
		if len(want) == 0 {
			if err != io.EOF {
				t.Fatalf("pop of an empty queue: %q, %v", got, err)
			}
			continue
		}
		if err != nil || got != want[0] {
			t.Fatalf("pop = %q, %v, want %q", got, err, want[0])
		}
		want = want[1:]
	}
	q.close()
	if left := q.s.held.Load(); left != 0 {
		t.Errorf("%d bytes are held at the end", left)
	}
}

// TestBound: building a manifest, or its table, takes no more memory for a hundred times as many files and directories.
func TestBound(t *testing.T) {
	s := &Scratch{Dir: t.TempDir(), Memory: 30_000}
	for _, n := range []int{300, 30_000} {
		rs := randomRecords(uint64(n), n)
		for i := range rs {
			rs[i].Path = fmt.Sprintf("deep/%d/%s", i/10, rs[i].Path)
		}
		var b bytes.Buffer
		sum, err := Build(BuildConfig{Dataset: ds, Root: rootAttr, Scratch: s}, []*Reader{part(t, rs[:n/2]...), part(t, rs[n/2:]...)}, &b)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Ingest(context.Background(), newKV(t), NewReader(&b), s)
		if err != nil || got.Digest != sum.Digest || got.Files != int64(n) || got.Dirs != sum.Dirs || got.Dirs < int64(n)/10 {
			t.Fatalf("%d records: %+v, %v, want %+v", n, got, err, sum)
		}
		if peak, most := s.peak.Load(), s.Bound(300); peak > most || n > 1000 && peak < most/3 {
			t.Errorf("%d records took %d bytes, want at most %d", n, peak, most)
		}
		if s.held.Load() != 0 {
			t.Errorf("%d bytes are held at the end", s.held.Load())
		}
	}
}

// TestBuildInLittle: the manifest is the same however little memory there is, and has the tree that a plain map makes
// from the records.
func TestBuildInLittle(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	names := []string{"a", "b", "a\x01", "a!", "a-", "a0", "\xff", "\x01", "aa", "ab"}
	for range 6 {
		kinds := map[string]uint32{} // of the existing paths
		var rs []Record
		var files []string
		add := func(path string, mode uint32, to string) {
			for up, _ := split(path); up != ""; up, _ = split(up) {
				if k, ok := kinds[up]; ok && k != dir {
					return
				}
			}
			if was, ok := kinds[path]; ok && (was != dir || mode != dir) {
				return
			}
			for up, _ := split(path); up != ""; up, _ = split(up) {
				kinds[up] = dir
			}
			if kinds[path] = dir; mode != dir {
				kinds[path] = reg
			}
			if mode == reg {
				files = append(files, path)
			}
			rs = append(rs, rec(path, mode, to))
		}
		for range 400 {
			var path []string
			for range 1 + r.IntN(5) {
				path = append(path, names[r.IntN(len(names))])
			}
			switch p := strings.Join(path, "/"); {
			case r.IntN(4) == 0:
				add(p, dir, "")
			case r.IntN(6) == 0 && len(files) > 0:
				add(p, 0, files[r.IntN(len(files))])
			default:
				add(p, reg, "")
			}
		}
		var digests []string
		for _, memory := range []int{0, 1, 5000} {
			var b bytes.Buffer
			k := r.IntN(len(rs))
			cfg := BuildConfig{Dataset: ds, Root: rootAttr, Scratch: &Scratch{Dir: t.TempDir(), Memory: memory}}
			sum, err := Build(cfg, []*Reader{part(t, rs[:k]...), part(t, rs[k:]...)}, &b)
			if err != nil {
				t.Fatal(err)
			}
			kv := newKV(t)
			got, err := Ingest(context.Background(), kv, NewReader(&b), cfg.Scratch)
			if err != nil || !reflect.DeepEqual(got, sum) {
				t.Fatalf("Ingest = %+v, %v, Build = %+v", got, err, sum)
			}
			if sum.Files+sum.Dirs+sum.Links != int64(len(kinds)) {
				t.Errorf("%d files, %d directories and %d links of %d paths", sum.Files, sum.Dirs, sum.Links, len(kinds))
			}
			tab, err := Open(kv, ds)
			if err != nil {
				t.Fatal(err)
			}
			for path, mode := range kinds {
				if a := find(t, tab, path); a.Mode&syscall.S_IFMT != mode&syscall.S_IFMT {
					t.Errorf("%q has mode %o, want %o", path, a.Mode, mode)
				}
			}
			digests = append(digests, sum.Digest)
		}
		if digests[0] != digests[1] || digests[0] != digests[2] {
			t.Errorf("digests %v differ", digests)
		}
	}
}

// find returns the attributes of a path.
func find(t *testing.T, tab *Table, path string) metadata.Attr {
	t.Helper()
	at := tab.Root()
	var a metadata.Attr
	for name := range strings.SplitSeq(path, "/") {
		e, err := tab.Lookup(context.Background(), at, name)
		if err != nil {
			t.Fatalf("%q: %v", path, err)
		}
		at, a = e.Ino, *e.Attr
	}
	return a
}

// TestSpool: the output equals the input, also on a second read, and more data takes no more memory.
func TestSpool(t *testing.T) {
	s := &Scratch{Dir: t.TempDir()}
	other := s.Spool() // in the same file
	for _, n := range []int{0, 1, 300, 30_000} {
		p := s.Spool()
		rs := randomRecords(uint64(n), n)
		for _, r := range rs {
			if err := errors.Join(p.Add(r), other.Add(rec("x", reg, ""))); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			i := 0
			if err := p.Each(func(r Record) error {
				if r != rs[i] {
					return fmt.Errorf("record %d is %+v, want %+v", i, r, rs[i])
				}
				i++
				return nil
			}); err != nil || i != n {
				t.Fatalf("%d of %d, %v", i, n, err)
			}
		}
		if err := p.Each(func(Record) error { return syscall.EPIPE }); n > 0 && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("who refuses a record hears %v", err)
		}
		p.Close()
		p.Close()
	}
	n := 0
	if err := other.Each(func(Record) error { n++; return nil }); err != nil || n != 30_301 {
		t.Errorf("the other has %d, %v", n, err)
	}
	other.Close()
	if s.shared.f != nil {
		t.Error("the file is still there")
	}
	if peak, held := s.peak.Load(), s.held.Load(); peak > 2*spoolBlock || held != 0 {
		t.Errorf("%d bytes were held, %d are", peak, held)
	}
}

// Bound limits the memory of one sort and one queue, in bytes, if no key with its value is longer than longest: the
// sort's memory, or a block for each run that is merged and one for the output; plus one block for both ends of the
// queue, or for the directory cache.
func (s *Scratch) Bound(longest int) int64 {
	return int64(max(s.memory(), (fanIn+1)*s.block()) + 4*s.block() + (fanIn+4)*longest)
}
