package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"sort"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
)

const ds = metadata.DatasetID(3)

const (
	reg  = syscall.S_IFREG | 0o644
	dir  = syscall.S_IFDIR | 0o750
	lnk  = syscall.S_IFLNK | 0o777
	fifo = syscall.S_IFIFO | 0o644
)

var rootAttr = metadata.Attr{Mode: syscall.S_IFDIR | 0o755, UID: 7, GID: 8, Mtime: 5e9, Atime: 5e9, Ctime: 5e9}

var seq uint32

// rec returns a record; a mode of 0 makes it a hard link to target.
func rec(path string, mode uint32, target string) Record {
	seq++
	r := Record{Path: path, Attr: metadata.Attr{
		Ino: metadata.SealedIno(ds, uint16(seq%3), seq), Mode: mode, Nlink: 1, UID: 1000, GID: 1000,
		Mtime: 1_700_000_000_000_000_000, Atime: 1_700_000_000_000_000_000, Ctime: 1_760_000_000_123_456_789,
		Layout: metadata.Layout{Kind: metadata.Local, Node: metadata.NodeID(seq % 3)},
	}}
	switch mode & syscall.S_IFMT {
	case 0:
		r.Hardlink = target
	case syscall.S_IFLNK:
		r.Target, r.Attr.Size = target, int64(len(target))
	case syscall.S_IFREG:
		r.Attr.Size = 1000 + int64(seq)
		r.Sum = [16]byte{1, byte(seq)}
		switch seq % 4 {
		case 0:
			r.From = Origin{Source: seq, Off: 512 * int64(seq)}
			if seq > 0 && seq%2 == 0 {
				r.From.Head, r.From.Check = 512, uint64(seq)<<60|7
			}
			if seq > 0 && seq%3 == 0 {
				r.From.Zip = Zip{Span: int64(seq) << 20, Packed: int64(seq), Method: uint16(seq)}
			}
		case 1:
			r.From = Origin{Path: path}
		case 2:
			r.From = Origin{Source: 1, Path: path + "/elsewhere"}
		}
	}
	return r
}

// part encodes records as a stream.
func part(t testing.TB, rs ...Record) *Reader {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, r := range rs {
		if err := w.Add(r); err != nil {
			t.Fatalf("Add(%q): %v", r.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return NewReader(&b)
}

// newKV returns a real table.
func newKV(t testing.TB) *pebblestore.Table {
	t.Helper()
	s, err := pebblestore.Open(pebblestore.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.Table(ds)
}

func buildConfig(t testing.TB) BuildConfig {
	t.Helper()
	return BuildConfig{Dataset: ds, Root: rootAttr, Scratch: &Scratch{Dir: t.TempDir()}}
}

// build builds the table of some parts.
func build(t testing.TB, parts ...*Reader) (*Table, Summary) {
	t.Helper()
	var b bytes.Buffer
	sum, err := Build(buildConfig(t), parts, &b)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}
	kv := newKV(t)
	got, err := Ingest(context.Background(), kv, NewReader(bytes.NewReader(b.Bytes())), &Scratch{Dir: t.TempDir()})
	if err != nil {
		t.Fatalf("Ingest: %v", err)
	}
	if !reflect.DeepEqual(got, sum) {
		t.Fatalf("Ingest = %+v, Build = %+v", got, sum)
	}
	tab, err := Open(kv, ds)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if !reflect.DeepEqual(tab.Summary(), sum) {
		t.Fatalf("Summary = %+v, want %+v", tab.Summary(), sum)
	}
	return tab, sum
}

// walk lists the paths of a table with their types, link counts and sizes.
func walk(t testing.TB, s metadata.Store, root metadata.Ino) []string {
	t.Helper()
	var all []string
	var visit func(ino metadata.Ino, path string)
	visit = func(ino metadata.Ino, path string) {
		after := ""
		for {
			es, err := s.ReadDir(context.Background(), ino, after, 2)
			if err != nil {
				t.Fatalf("ReadDir(%q): %v", path, err)
			}
			for _, e := range es {
				a, err := s.Getattr(context.Background(), e.Ino)
				if err != nil || a != *e.Attr {
					t.Fatalf("Getattr(%q) = %+v, %v, want %+v", path+e.Name, a, err, *e.Attr)
				}
				l, err := s.Lookup(context.Background(), ino, e.Name)
				if err != nil || !reflect.DeepEqual(l, e) {
					t.Fatalf("Lookup(%q) = %+v, %v, want %+v", path+e.Name, l, err, e)
				}
				all = append(all, fmt.Sprintf("%s%s %o %d", path, e.Name, a.Mode&syscall.S_IFMT>>12, a.Nlink))
				if isDir(a.Mode) {
					visit(e.Ino, path+e.Name+"/")
				}
				after = e.Name
			}
			if len(es) < 2 {
				return
			}
		}
	}
	visit(root, "")
	sort.Strings(all)
	return all
}

func TestTree(t *testing.T) {
	tab, sum := build(t,
		part(t, rec("b/x", reg, ""), rec("b", dir, ""), rec("b/c/d/deep", reg, ""), rec("b-side", reg, "")),
		part(t, rec("hard", 0, "b/x"), rec("again", 0, "hard"), rec("sym", lnk, "b/x"), rec("empty", dir, "")),
		part(t),
	)
	want := []string{
		"again 10 3", "b 4 3", "b-side 10 1", "b/c 4 3", "b/c/d 4 2", "b/c/d/deep 10 1", "b/x 10 3",
		"empty 4 2", "hard 10 3", "sym 12 1",
	}
	if got := walk(t, tab, tab.Root()); !reflect.DeepEqual(got, want) {
		t.Errorf("tree =\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if sum.Files != 3 || sum.Dirs != 4 || sum.Symlinks != 1 || sum.Links != 2 || sum.Digest == "" {
		t.Errorf("Summary = %+v", sum)
	}
	a, err := tab.Getattr(context.Background(), tab.Root())
	want0 := rootAttr
	want0.Ino, want0.Nlink = tab.Root(), 4
	if err != nil || a != want0 {
		t.Errorf("root = %+v, %v, want %+v", a, err, want0)
	}
	e, err := tab.Lookup(context.Background(), tab.Root(), "sym")
	if err != nil {
		t.Fatal(err)
	}
	if to, err := tab.Readlink(context.Background(), e.Ino); err != nil || to != "b/x" {
		t.Errorf("Readlink = %q, %v", to, err)
	}
}

func TestRootRecord(t *testing.T) {
	tab, _ := build(t, part(t, rec("", dir, ""), rec("f", reg, "")))
	a, err := tab.Getattr(context.Background(), tab.Root())
	if err != nil || a.Mode != dir || a.UID != 1000 || a.Nlink != 2 {
		t.Errorf("root = %+v, %v", a, err)
	}
}

func TestEmptyDataset(t *testing.T) {
	tab, sum := build(t)
	if got := walk(t, tab, tab.Root()); len(got) != 0 {
		t.Errorf("tree = %q", got)
	}
	if sum.Files != 0 || sum.Dirs != 0 {
		t.Errorf("Summary = %+v", sum)
	}
}

func TestOddNames(t *testing.T) {
	names := []string{"new\nline", "bad\xff\xfeutf8", "a b", "\x01", "-rf", "…", "sp ", strings.Repeat("n", 255), "\xff"}
	var rs []Record
	for _, n := range names {
		rs = append(rs, rec(n, reg, ""), rec("d"+n[:len(n)-1]+"/"+n, reg, ""))
	}
	tab, _ := build(t, part(t, rs...))
	for _, n := range names {
		if _, err := tab.Lookup(context.Background(), tab.Root(), n); err != nil {
			t.Errorf("Lookup(%q): %v", n, err)
		}
	}
}

// TestDirectoryTwice: an archive may name a directory again; the last record counts, whichever part it is in.
func TestDirectoryTwice(t *testing.T) {
	first, last, root := rec("a/d", dir|0o700, ""), rec("a/d", dir|0o751, ""), rec("", dir|0o711, "")
	var out bytes.Buffer
	sum, err := Build(buildConfig(t), []*Reader{part(t, rec("", dir|0o700, ""), first, rec("a/d/f", reg, "")), part(t, last, root)}, &out)
	if err != nil || sum.Dirs != 2 || sum.Files != 1 {
		t.Fatalf("Build = %+v, %v, want 2 directories and a file", sum, err)
	}
	want := map[string]uint32{"": root.Attr.Mode, "a/d": last.Attr.Mode}
	for r := NewReader(&out); ; {
		got, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if m, ok := want[got.Path]; ok && got.Attr.Mode != m {
			t.Errorf("%q has mode %o, want %o", got.Path, got.Attr.Mode, m)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	foreign := rec("f", reg, "")
	foreign.Attr.Ino = metadata.SealedIno(ds+1, 0, 1)
	inDirs := rec("f", reg, "")
	inDirs.Attr.Ino = metadata.SealedIno(ds, metadata.DirPart, 1)
	tests := []struct {
		name  string
		parts [][]Record
		want  error
		text  string
	}{
		{"twice", [][]Record{{rec("a/b", reg, "")}, {rec("a/b", reg, "")}}, syscall.EEXIST, `"a/b"`},
		{"file and directory", [][]Record{{rec("a", reg, "")}, {rec("a", dir, "")}}, syscall.EEXIST, `"a"`},
		{"file and hard link", [][]Record{{rec("o", reg, ""), rec("a", reg, ""), rec("a", 0, "o")}}, syscall.EEXIST, `"a"`},
		{"hard link twice", [][]Record{{rec("o", reg, ""), rec("a", 0, "o"), rec("a", 0, "o")}}, syscall.EEXIST, `"a"`},
		{"through a file", [][]Record{{rec("a/f", reg, "")}, {rec("a/f/x/y", reg, "")}}, syscall.ENOTDIR, `"a/f"`},
		{"through a symlink", [][]Record{{rec("s", lnk, "/"), rec("s/x", reg, "")}}, syscall.ENOTDIR, `"s"`},
		{"through a hard link", [][]Record{{rec("o", reg, ""), rec("h", 0, "o"), rec("h/x", reg, "")}}, syscall.ENOTDIR, `"h"`},
		{"hard link to nothing", [][]Record{{rec("h", 0, "gone")}}, syscall.ENOENT, `"gone"`},
		{"hard link to a directory", [][]Record{{rec("d", dir, ""), rec("h", 0, "d")}}, syscall.EPERM, `"d"`},
		{"hard link to a made directory", [][]Record{{rec("d/x", reg, ""), rec("h", 0, "d")}}, syscall.EPERM, `"d"`},
		{"hard links in a circle", [][]Record{{rec("h", 0, "i"), rec("i", 0, "h")}}, syscall.ELOOP, `"`},
		{"hard link to itself", [][]Record{{rec("h", 0, "h")}}, syscall.ELOOP, `"h"`},
		{"fifo", [][]Record{{rec("p", fifo, "")}}, syscall.EINVAL, `"p"`},
		{"root a file", [][]Record{{rec("", reg, "")}}, syscall.ENOTDIR, "root"},
		{"foreign inode", [][]Record{{foreign}}, syscall.EINVAL, `"f"`},
		{"inode among directories", [][]Record{{inDirs}}, syscall.EINVAL, `"f"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var parts []*Reader
			for _, rs := range tt.parts {
				parts = append(parts, part(t, rs...))
			}
			_, err := Build(buildConfig(t), parts, io.Discard)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("Build = %v, want %v naming %s", err, tt.want, tt.text)
			}
		})
	}
}

// TestLeave: entries that do not fit into a tree are left out, with the reason, and all others are kept.
func TestLeave(t *testing.T) {
	at := func(r Record, source uint32, off int64) Record {
		r.From = Origin{Source: source, Off: off}
		return r
	}
	sized := func(r Record, size int64) Record {
		r.Attr.Size, r.From = size, Origin{}
		return r
	}
	for _, tt := range []struct {
		name  string
		parts [][]Record
		want  []string // path, and the size unless it is a directory
		left  []string // path, size, reason
	}{
		{"the last stays", [][]Record{{sized(rec("a", reg, ""), 1), sized(rec("b", reg, ""), 2)}, {sized(rec("a", reg, ""), 3)}},
			[]string{"a 3", "b 2"}, []string{"a 1 EEXIST"}},
		{"the last of many", [][]Record{{sized(rec("a", reg, ""), 1), sized(rec("a", lnk, "x"), 2), sized(rec("a", reg, ""), 3)}},
			[]string{"a 3"}, []string{"a 1 EEXIST", "a 2 EEXIST"}},
		{"the last in the source", [][]Record{{at(sized(rec("a", reg, ""), 1), 1, 512)}, {at(sized(rec("a", lnk, "x"), 2), 0, 9000)}, {at(sized(rec("a", reg, ""), 3), 1, 511)}},
			[]string{"a 1"}, []string{"a 2 EEXIST", "a 3 EEXIST"}},
		{"a directory before a file", [][]Record{{rec("d", dir, ""), sized(rec("d", reg, ""), 1), rec("d", dir, "")}},
			[]string{"d/"}, []string{"d 1 EEXIST"}},
		{"a file before a hard link", [][]Record{{sized(rec("a", reg, ""), 1), rec("a", 0, "a"), sized(rec("o", reg, ""), 2), rec("a", 0, "o")}},
			[]string{"a 1", "o 2"}, []string{"a 0 EEXIST", "a 0 EEXIST"}},
		{"the last hard link", [][]Record{{sized(rec("o", reg, ""), 1), sized(rec("p", reg, ""), 2), rec("h", 0, "o"), rec("h", 0, "p"), rec("i", 0, "h")}},
			[]string{"h 2", "i 2", "o 1", "p 2"}, []string{"h 0 EEXIST"}},
		{"through a file", [][]Record{{sized(rec("a/f", reg, ""), 1)}, {sized(rec("a/f/x/y", reg, ""), 2)}},
			[]string{"a/", "a/f/", "a/f/x/", "a/f/x/y 2"}, []string{"a/f 1 ENOTDIR"}},
		{"through a hard link", [][]Record{{sized(rec("o", reg, ""), 1), rec("h", 0, "o"), sized(rec("h/x", reg, ""), 2), rec("i", 0, "h")}},
			[]string{"h/", "h/x 2", "o 1"}, []string{"h 0 ENOTDIR", "i 0 EPERM"}},
		{"through two", [][]Record{{sized(rec("a", reg, ""), 1), sized(rec("a", reg, ""), 2), sized(rec("a/x", reg, ""), 3)}},
			[]string{"a/", "a/x 3"}, []string{"a 1 EEXIST", "a 2 ENOTDIR"}},
		{"hard links to nothing", [][]Record{{rec("h", 0, "gone"), rec("i", 0, "h"), sized(rec("z", reg, ""), 1), rec("k", 0, "z")}},
			[]string{"k 1", "z 1"}, []string{"h 0 ENOENT", "i 0 ENOENT"}},
		{"a hard link to a directory", [][]Record{{rec("d/x", dir, ""), rec("h", 0, "d")}},
			[]string{"d/", "d/x/"}, []string{"h 0 EPERM"}},
		{"in a circle", [][]Record{{rec("h", 0, "i"), rec("i", 0, "h"), rec("j", 0, "h"), sized(rec("z", reg, ""), 1)}},
			[]string{"z 1"}, []string{"h 0 ELOOP", "i 0 ELOOP", "j 0 ELOOP"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var parts []*Reader
			for _, rs := range tt.parts {
				parts = append(parts, part(t, rs...))
			}
			cfg := buildConfig(t)
			var left []string
			cfg.Leave = func(r *Record, why error) error {
				var no syscall.Errno
				if !errors.As(why, &no) || !strings.Contains(why.Error(), fmt.Sprintf("%q", r.Path)) {
					t.Errorf("%q is left out because of %v", r.Path, why)
				}
				left = append(left, fmt.Sprintf("%s %d %s", r.Path, r.Attr.Size, unix.ErrnoName(no)))
				return nil
			}
			var b bytes.Buffer
			sum, err := Build(cfg, parts, &b)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			dirs, files := int64(0), int64(0)
			if err := each(t, &b, func(r *Record) {
				switch {
				case r.Path == "":
				case isDir(r.Attr.Mode):
					got = append(got, r.Path+"/")
					dirs++
				default:
					got = append(got, fmt.Sprintf("%s %d", r.Path, r.Attr.Size))
					files++
				}
			}); err != nil {
				t.Fatal(err)
			}
			sort.Strings(got)
			sort.Strings(left)
			if !reflect.DeepEqual(got, tt.want) || !reflect.DeepEqual(left, tt.left) {
				t.Errorf("has %q without %q, want %q without %q", got, left, tt.want, tt.left)
			}
			if sum.Files+sum.Symlinks+sum.Links != files || sum.Dirs != dirs {
				t.Errorf("Summary = %+v, of %q", sum, got)
			}
		})
	}
}

// TestLeaveFails: the callback for skipped entries can stop the build.
func TestLeaveFails(t *testing.T) {
	for _, rs := range [][]Record{{rec("a", reg, ""), rec("a", reg, "")}, {rec("h", 0, "gone")}} {
		cfg := buildConfig(t)
		cfg.Leave = func(*Record, error) error { return syscall.EDQUOT }
		if _, err := Build(cfg, []*Reader{part(t, rs...)}, io.Discard); !errors.Is(err, syscall.EDQUOT) {
			t.Errorf("Build = %v, want EDQUOT", err)
		}
	}
}

func each(t *testing.T, b io.Reader, fn func(r *Record)) error {
	t.Helper()
	for m := NewReader(b); ; {
		r, err := m.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		fn(&r)
	}
}

// TestTimes: the table keeps the times of the records exactly.
func TestTimes(t *testing.T) {
	all := []metadata.Time{0, 1, -1, 1e9, -1e9, -1_500_000_000, 1_700_000_000e9, 1_700_000_000_123_456_789, 7_258_118_400e9,
		9_223_372_035e9, 9_223_372_036e9, -9_223_372_036e9, 1<<63 - 1, -1 << 63, 1<<62 + 1, -1<<62 - 1}
	var rs []Record
	for i, m := range all {
		for k, c := range all {
			r := rec(fmt.Sprintf("%d/%d", i, k), reg, "")
			r.Attr.Mtime, r.Attr.Ctime, r.Attr.Atime = m, c, all[(i+k)%len(all)]
			rs = append(rs, r)
		}
	}
	tab, _ := build(t, part(t, rs...))
	for _, r := range rs {
		dir, name := split(r.Path)
		d, err := tab.Lookup(context.Background(), tab.Root(), dir)
		if err != nil {
			t.Fatal(err)
		}
		e, err := tab.Lookup(context.Background(), d.Ino, name)
		if err != nil || e.Attr.Mtime != r.Attr.Mtime || e.Attr.Ctime != r.Attr.Ctime || e.Attr.Atime != r.Attr.Atime {
			t.Errorf("%d %d %d became %+v, %v", r.Attr.Mtime, r.Attr.Ctime, r.Attr.Atime, e.Attr, err)
		}
	}
}

func TestAddRefuses(t *testing.T) {
	long := strings.Repeat("n", 256)
	deep := strings.Repeat("d/", MaxPath/2) + "xx"
	tests := []struct {
		r    Record
		want error
	}{
		{Record{Path: "/abs"}, syscall.EINVAL},
		{Record{Path: "a//b"}, syscall.EINVAL},
		{Record{Path: "a/"}, syscall.EINVAL},
		{Record{Path: "."}, syscall.EINVAL},
		{Record{Path: "a/../b"}, syscall.EINVAL},
		{Record{Path: "a/./b"}, syscall.EINVAL},
		{Record{Path: "a\x00b"}, syscall.EINVAL},
		{Record{Path: long}, syscall.ENAMETOOLONG},
		{Record{Path: deep}, syscall.ENAMETOOLONG},
		{Record{Path: "h", Hardlink: "../x"}, syscall.EINVAL},
		{Record{Path: "s", Target: strings.Repeat("t", MaxTarget+1)}, syscall.ENAMETOOLONG},
		{Record{Path: "s", Target: "a\x00"}, syscall.EINVAL},
		{Record{Path: "f", Attr: metadata.Attr{Size: -1}}, syscall.EINVAL},
	}
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, tt := range tests {
		if err := w.Add(tt.r); !errors.Is(err, tt.want) {
			t.Errorf("Add(%.20q) = %v, want %v", tt.r.Path, err, tt.want)
		}
	}
	good := rec("good", reg, "")
	if err := errors.Join(w.Add(good), w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := w.Add(good); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Add after Close = %v, want EINVAL", err)
	}
	r := NewReader(&b)
	if got, err := r.Next(); err != nil || got != good {
		t.Errorf("Next = %+v, %v, want %+v", got, err, good)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("Next at the end = %v, want EOF", err)
	}
}

// randomRecords returns a tree of n files in a shuffled order.
func randomRecords(seed uint64, n int) []Record {
	rng := rand.New(rand.NewPCG(seed, 1))
	var rs []Record
	for i := range n {
		r := rec(fmt.Sprintf("d%02d/c%03d/n%08d_%d.JPEG", rng.IntN(5), rng.IntN(20), rng.IntN(1<<26), i), reg, "")
		rng2 := rng.Uint64()
		for j := range 8 {
			r.Sum[j], r.Sum[j+8] = byte(rng2>>(8*j)), byte(rng2*31>>(8*j))
		}
		r.Attr.Size = int64(rng.IntN(200_000))
		r.Attr.Mtime = metadata.Time(1_300_000_000+rng.IntN(1000)) * second
		r.Attr.Atime = r.Attr.Mtime
		r.Attr.Ctime = r.Attr.Mtime
		rs = append(rs, r)
	}
	return rs
}

func TestDigestIndependsOfParts(t *testing.T) {
	rs := randomRecords(1, 2000)
	var a, b bytes.Buffer
	s1, err := Build(buildConfig(t), []*Reader{part(t, rs...)}, &a)
	if err != nil {
		t.Fatal(err)
	}
	rand.New(rand.NewPCG(2, 2)).Shuffle(len(rs), func(i, j int) { rs[i], rs[j] = rs[j], rs[i] })
	s2, err := Build(buildConfig(t), []*Reader{part(t, rs[:700]...), part(t, rs[700:]...)}, &b)
	if err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) || s1.Digest != s2.Digest {
		t.Errorf("Build of the same records in other parts: digest %s, %v, want %s", s2.Digest, err, s1.Digest)
	}
}

func TestReaderDamage(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, r := range randomRecords(3, 50) {
		if err := w.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	read := func(p []byte) error {
		r := NewReader(bytes.NewReader(p))
		for {
			if _, err := r.Next(); err != nil {
				return err
			}
		}
	}
	whole := b.Bytes()
	if err := read(whole); err != io.EOF {
		t.Fatalf("whole stream: %v", err)
	}
	for n := range whole {
		if err := read(whole[:n]); !errors.Is(err, syscall.EIO) {
			t.Fatalf("cut to %d bytes: %v, want EIO", n, err)
		}
		p := bytes.Clone(whole)
		p[n] ^= 0x40
		if err := read(p); !errors.Is(err, syscall.EIO) {
			t.Fatalf("byte %d altered: %v, want EIO", n, err)
		}
	}
	if err := read(append(bytes.Clone(whole), 0)); !errors.Is(err, syscall.EIO) {
		t.Errorf("with a byte behind the end: %v, want EIO", err)
	}
}
