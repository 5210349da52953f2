package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/varint"
)

var ctx = context.Background()

func TestTableReads(t *testing.T) {
	want := rec("d/f", reg, "")
	want.Attr.Layout = metadata.Layout{Kind: metadata.Striped, Copies: 1, ChunkSize: 16 << 20, Width: 4, Epoch: 3}
	tab, sum := build(t, part(t, want, rec("d/g", reg, ""), rec("s", lnk, "to")))
	d, err := tab.Lookup(ctx, tab.Root(), "d")
	if err != nil {
		t.Fatal(err)
	}
	f, err := tab.Lookup(ctx, d.Ino, "f")
	if err != nil || *f.Attr != want.Attr {
		t.Errorf("Lookup = %+v, %v, want %+v", f.Attr, err, want.Attr)
	}
	if s, a, err := tab.Record(f.Ino); err != nil || s != want.Sum || a != want.Attr {
		t.Errorf("Record = %x, %+v, %v, want %x, %+v", s, a, err, want.Sum, want.Attr)
	}
	if sum.Striped != (NodeShare{Files: 1, Bytes: want.Attr.Size}) || len(sum.PerNode) != 1 {
		t.Errorf("shares = %+v, %+v", sum.Striped, sum.PerNode)
	}
	lookup := func(dir metadata.Ino, name string) error { _, err := tab.Lookup(ctx, dir, name); return err }
	readDir := func(dir metadata.Ino, after string, n int) error {
		_, err := tab.ReadDir(ctx, dir, after, n)
		return err
	}
	getattr := func(ino metadata.Ino) error { _, err := tab.Getattr(ctx, ino); return err }
	readlink := func(ino metadata.Ino) error { _, err := tab.Readlink(ctx, ino); return err }
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, interrupt := tab.ReadDir(cancelled, tab.Root(), "", 10)
	for _, tt := range []struct {
		what      string
		err, want error
	}{
		{"no such name", lookup(tab.Root(), "none"), syscall.ENOENT},
		{"empty name", lookup(tab.Root(), ""), syscall.EINVAL},
		{"..", lookup(tab.Root(), ".."), syscall.EINVAL},
		{"slash", lookup(tab.Root(), "d/f"), syscall.EINVAL},
		{"long name", lookup(tab.Root(), strings.Repeat("n", 256)), syscall.ENAMETOOLONG},
		{"file as directory", lookup(f.Ino, "x"), syscall.ENOTDIR},
		{"no such directory", lookup(metadata.SealedIno(ds, metadata.DirPart, 99), "x"), syscall.ENOENT},
		{"directory of another dataset", lookup(metadata.SealedIno(ds+1, metadata.DirPart, 0), "d"), syscall.ENOENT},
		{"live directory", lookup(metadata.RootIno, "d"), syscall.ENOENT},
		{"list of a file", readDir(f.Ino, "", 1), syscall.ENOTDIR},
		{"list of nothing", readDir(metadata.RootIno, "", 1), syscall.ENOENT},
		{"list by none", readDir(tab.Root(), "", 0), syscall.EINVAL},
		{"cancelled", interrupt, syscall.EINTR},
		{"attributes of nothing", getattr(metadata.SealedIno(ds, 0, 1<<31)), syscall.ENOENT},
		{"attributes elsewhere", getattr(metadata.SealedIno(ds+1, f.Ino.Part(), f.Ino.Seq())), syscall.ENOENT},
		{"target of a file", readlink(f.Ino), syscall.EINVAL},
		{"target of nothing", readlink(metadata.RootIno), syscall.ENOENT},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.what, tt.err, tt.want)
		}
	}
}

func TestTableIsReadOnly(t *testing.T) {
	tab, _ := build(t, part(t, rec("f", reg, ""), rec("d", dir, "")))
	f, err := tab.Lookup(ctx, tab.Root(), "f")
	if err != nil {
		t.Fatal(err)
	}
	_, create := tab.Create(ctx, tab.Root(), "g", metadata.New{})
	_, unlink := tab.Unlink(ctx, tab.Root(), "f")
	_, rename := tab.Rename(ctx, metadata.Rename{Dir: tab.Root(), Name: "f", NewDir: tab.Root(), NewName: "g"})
	_, setattr := tab.Setattr(ctx, f.Ino, metadata.Change{Set: metadata.SetMode})
	_, mkdir := tab.Mkdir(ctx, tab.Root(), "e", metadata.New{})
	_, link := tab.Link(ctx, f.Ino, tab.Root(), "l")
	for what, err := range map[string]error{
		"Create": create, "Unlink": unlink, "Rename": rename, "Setattr": setattr, "Mkdir": mkdir, "Link": link,
		"Rmdir": tab.Rmdir(ctx, tab.Root(), "d"),
	} {
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s = %v, want EROFS", what, err)
		}
	}
	if got := walk(t, tab, tab.Root()); len(got) != 2 {
		t.Errorf("tree = %q", got)
	}
}

func TestOpenRefuses(t *testing.T) {
	kv := newKV(t)
	if _, err := Open(kv, ds); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Open of nothing = %v, want ENOENT", err)
	}
	var b bytes.Buffer
	if _, err := Build(BuildConfig{Dataset: ds + 1, Root: rootAttr, Scratch: &Scratch{Dir: t.TempDir()}}, nil, &b); err != nil {
		t.Fatal(err)
	}
	if _, err := Ingest(ctx, kv, NewReader(&b), &Scratch{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(kv, ds); !errors.Is(err, syscall.EIO) {
		t.Errorf("Open of another dataset's table = %v, want EIO", err)
	}
}

// TestIngestRefuses: a manifest that no Build could make is refused, and the table is unchanged.
func TestIngestRefuses(t *testing.T) {
	top := Record{Attr: metadata.Attr{Ino: metadata.SealedIno(ds, metadata.DirPart, 0), Mode: dir, Nlink: 2}}
	sub := func(path string, n uint32) Record {
		return Record{Path: path, Attr: metadata.Attr{Ino: metadata.SealedIno(ds, metadata.DirPart, n), Mode: dir, Nlink: 2}}
	}
	file := func(path string, n uint32) Record {
		return Record{Path: path, Attr: metadata.Attr{Ino: metadata.SealedIno(ds, 0, n), Mode: reg, Nlink: 1, Size: int64(n)}}
	}
	with := func(r Record, fn func(*Record)) Record { fn(&r); return r }
	tests := []struct {
		name string
		rs   []Record
	}{
		{"nothing", nil},
		{"no root", []Record{file("a", 1)}},
		{"root a file", []Record{with(top, func(r *Record) { r.Attr.Mode = reg })}},
		{"root twice", []Record{top, top}},
		{"live root", []Record{with(top, func(r *Record) { r.Attr.Ino = metadata.RootIno })}},
		{"names out of order", []Record{top, file("b", 1), file("a", 2)}},
		{"name twice", []Record{top, file("a", 1), file("a", 2)}},
		{"depth out of order", []Record{top, sub("d", 1), file("d/x", 1), file("e", 2)}},
		{"directories out of order", []Record{top, sub("d", 1), sub("e", 2), file("e/x", 1), file("d/x", 2)}},
		{"no such parent", []Record{top, file("d/x", 1)}},
		{"through a file", []Record{top, file("d", 1), file("d/x", 2)}},
		{"directory numbered otherwise", []Record{top, sub("d", 2)}},
		{"directory numbered as a file", []Record{top, with(file("d", 1), func(r *Record) { r.Attr.Mode = dir })}},
		{"file numbered as a directory", []Record{top, with(sub("d", 1), func(r *Record) { r.Attr.Mode = reg })}},
		{"another dataset", []Record{top, with(file("a", 1), func(r *Record) { r.Attr.Ino = metadata.SealedIno(ds+1, 0, 1) })}},
		{"live inode", []Record{top, with(file("a", 1), func(r *Record) { r.Attr.Ino = 5000 })}},
		{"hard link left", []Record{top, with(file("a", 1), func(r *Record) { r.Hardlink = "b" })}},
		{"fifo", []Record{top, with(file("a", 1), func(r *Record) { r.Attr.Mode = fifo })}},
		{"two files, one number", []Record{top, file("a", 1), with(file("b", 2), func(r *Record) { r.Attr.Ino = metadata.SealedIno(ds, 0, 1) })}},
		{"more names than links", []Record{top, file("a", 1), with(file("a", 1), func(r *Record) { r.Path = "b" })}},
		{"more links than names", []Record{top, with(file("a", 1), func(r *Record) { r.Attr.Nlink = 2 })}},
		{"no links", []Record{top, with(file("a", 1), func(r *Record) { r.Attr.Nlink = 0 })}},
	}
	kv := newKV(t)
	if _, err := Ingest(ctx, kv, part(t, top, file("kept", 1)), &Scratch{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Ingest(ctx, kv, part(t, tt.rs...), &Scratch{Dir: t.TempDir()}); err == nil {
				t.Error("Ingest succeeded")
			}
			tab, err := Open(kv, ds)
			if err != nil {
				t.Fatal(err)
			}
			if got := walk(t, tab, tab.Root()); len(got) != 1 || !strings.HasPrefix(got[0], "kept") {
				t.Errorf("the table has %q", got)
			}
		})
	}
}

// FuzzReader: no input makes the reader panic, and everything it reads can be written and read again.
func FuzzReader(f *testing.F) {
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, r := range []Record{rec("", dir, ""), rec("a/f", reg, ""), rec("a/g", lnk, "x"), rec("h", 0, "a/f")} {
		if err := w.Add(r); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, p []byte) {
		r := NewReader(bytes.NewReader(p))
		for {
			if _, err := r.Next(); err != nil {
				return
			}
		}
	})
}

// FuzzRecord does what FuzzReader does, past the checksum.
func FuzzRecord(f *testing.F) {
	for _, r := range []Record{{}, rec("a/f", reg, ""), rec("a/g", lnk, "x"), rec("h", 0, "a/f"), striped("s", 3)} {
		f.Add("a/before", r.append(nil, "a/before"))
	}
	f.Fuzz(func(t *testing.T, before string, p []byte) {
		d := decoder{varint.Decoder{B: p}}
		r := d.record(before)
		if d.Bad || r.check() != nil {
			return
		}
		again := decoder{varint.Decoder{B: r.append(nil, before)}}
		if got := again.record(before); again.Bad || got != r || len(again.B) != 0 {
			t.Fatalf("%x is %+v, and encoded again %+v", p, r, got)
		}
	})
}

func FuzzTableValues(f *testing.F) {
	r := rec("a/f", reg, "")
	f.Add(appendEntry(nil, &r.Attr), appendInode(nil, &r))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, entry, inode []byte) {
		if a, err := parseEntry(ds, entry); err == nil && validTimes(a) {
			again, err := parseEntry(ds, appendEntry(nil, &a))
			if err != nil || again != a {
				t.Fatalf("entry %x is %+v, and encoded again %+v, %v", entry, a, again, err)
			}
		}
		ino := metadata.SealedIno(ds, 1, 2)
		if r, err := parseInode(ino, inode); err == nil && validTimes(r.Attr) {
			again, err := parseInode(ino, appendInode(nil, &r))
			if err != nil || again != r {
				t.Fatalf("inode %x is %+v, and encoded again %+v, %v", inode, r, again, err)
			}
		}
	})
}

func validTimes(a metadata.Attr) bool { return (&Record{Attr: a}).check() == nil }

func dirSize(t testing.TB, root string) (bytes int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "*.sst"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		bytes += st.Size()
	}
	return bytes
}

// imageNet returns a table of n files with the names, sizes and checksums of a typical dataset, in the directory where.
func imageNet(t testing.TB, where string, n int) (tab *Table, encoded int) {
	t.Helper()
	var b bytes.Buffer
	if _, err := Build(buildConfig(t), []*Reader{part(t, randomRecords(7, n)...)}, &b); err != nil {
		t.Fatal(err)
	}
	s, err := pebblestore.Open(pebblestore.Config{Dir: where})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	kv := s.Table(ds)
	encoded = b.Len()
	if _, err := Ingest(ctx, kv, NewReader(&b), &Scratch{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	if tab, err = Open(kv, ds); err != nil {
		t.Fatal(err)
	}
	return tab, encoded
}

// TestBytesPerEntry bounds the size of an entry on disk and on the wire.
func TestBytesPerEntry(t *testing.T) {
	const n = 50_000
	where := t.TempDir()
	_, encoded := imageNet(t, where, n)
	disk, wire := float64(dirSize(t, where))/n, float64(encoded)/n
	t.Logf("%.1f bytes per entry on the disk, %.1f in the stream", disk, wire)
	if disk > 120 || wire > 120 {
		t.Errorf("%.1f bytes per entry on the disk, %.1f in the stream, want at most 120", disk, wire)
	}
}

func BenchmarkLookup(b *testing.B) {
	tab, _ := imageNet(b, b.TempDir(), 100_000)
	type name struct {
		dir  metadata.Ino
		name string
	}
	var names []name
	var visit func(ino metadata.Ino)
	visit = func(ino metadata.Ino) {
		es, err := tab.ReadDir(ctx, ino, "", 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range es {
			names = append(names, name{ino, e.Name})
			if isDir(e.Mode) {
				visit(e.Ino)
			}
		}
	}
	visit(tab.Root())
	b.Run("found", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			n := names[i*7919%len(names)]
			if _, err := tab.Lookup(ctx, n.dir, n.name); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("missing", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if _, err := tab.Lookup(ctx, names[i*7919%len(names)].dir, "__init__.py"); err == nil {
				b.Fatal("found")
			}
		}
	})
	b.Run("list", func(b *testing.B) {
		n := 0
		for i := 0; b.Loop(); i++ {
			es, err := tab.ReadDir(ctx, metadata.SealedIno(ds, metadata.DirPart, uint32(6+i%100)), "", 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			n += len(es)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/entry")
	})
}

func BenchmarkIngest(b *testing.B) {
	rs := randomRecords(7, 100_000)
	var m bytes.Buffer
	if _, err := Build(buildConfig(b), []*Reader{part(b, rs...)}, &m); err != nil {
		b.Fatal(err)
	}
	b.Run("build", func(b *testing.B) {
		for b.Loop() {
			var out bytes.Buffer
			if _, err := Build(buildConfig(b), []*Reader{part(b, rs...)}, &out); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("ingest", func(b *testing.B) {
		s, err := pebblestore.Open(pebblestore.Config{Dir: b.TempDir()})
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		for i := 0; b.Loop(); i++ {
			if _, err := Ingest(ctx, s.Table(metadata.DatasetID(i)), NewReader(bytes.NewReader(m.Bytes())), &Scratch{Dir: b.TempDir()}); err != nil {
				b.Fatal(fmt.Errorf("round %d: %w", i, err))
			}
		}
	})
}

// TestOrigins: a table has the origin of each file's bytes, and lists the files in order with their directories.
func TestOrigins(t *testing.T) {
	fs := []Record{rec("b/f", reg, ""), rec("b/c/g", reg, ""), rec("a", reg, ""), rec("z", lnk, "a")}
	fs[0].From, fs[1].From, fs[2].From = Origin{Path: "b/f"}, Origin{Source: 7, Off: 1 << 40, Head: 1536, Check: 1 << 63}, Origin{Source: 1, Off: 37, Head: 30, Check: 5, Zip: Zip{Span: 1 << 33, Packed: 9, Method: 8}}
	fs[0].From = Origin{Source: 2, Off: 4096, Head: 2048, Sparse: true}
	tab, _ := build(t, part(t, append(fs, rec("h", 0, "b/f"))...))
	for _, r := range fs {
		if from, a, err := tab.Origin(r.Attr.Ino); err != nil || from != r.From || a.Size != r.Attr.Size {
			t.Errorf("Origin(%s) = %+v, %+v, %v, want %+v", r.Path, from, a, err, r.From)
		}
	}
	var got []string
	err := tab.Files(func(dir string, number uint32, name string, a metadata.Attr) bool {
		got = append(got, fmt.Sprintf("%d %s %s %d", number, dir, name, a.Nlink))
		return true
	})
	if want := "0  a 1|0  h 2|1 b f 2|2 b/c g 1"; err != nil || strings.Join(got, "|") != want {
		t.Errorf("Files = %q, %v, want %q", strings.Join(got, "|"), err, want)
	}
	for _, o := range []Origin{{Off: -1}, {Off: 512, Head: 513}, {Off: 512, Head: -1}, {Off: 1, Path: "x"}, {Zip: Zip{Span: 1}}, {Off: 1, Zip: Zip{Span: 1, Packed: 2}}, {Off: 1, Zip: Zip{Span: -1, Packed: -1}}, {Path: strings.Repeat("x", MaxPath+1)}, {Off: 512, Sparse: true}, {Path: "x", Sparse: true}} {
		r := rec("f", reg, "")
		r.From = o
		if err := NewWriter(&bytes.Buffer{}).Add(r); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a record from %.20v: %v, want EINVAL", o, err)
		}
	}
}

// striped returns a record of a file of n chunks, with their checksums.
func striped(path string, n int) Record {
	r := rec(path, reg, "")
	r.Attr.Layout = metadata.Layout{Kind: metadata.Striped, ChunkSize: 1 << 20, Epoch: 1}
	r.Attr.Size = int64(n)<<20 - 5
	r.Chunks = CRCs(strings.Repeat("\x00\x01\x02\xff", n))
	return r
}

// TestChunks: a table has the chunk checksums of the files that have them, and every file is otherwise as without them.
func TestChunks(t *testing.T) {
	fs := []Record{rec("a", reg, ""), striped("b/f", 1), striped("b/g", MaxChunks), rec("c", reg, ""), striped("d", 7)}
	tab, _ := build(t, part(t, append(fs, rec("h", 0, "b/f"))...))
	for _, r := range fs {
		if got, err := tab.Chunks(r.Attr.Ino); err != nil || got != r.Chunks {
			t.Errorf("Chunks(%s) = %d sums, %v, want %d", r.Path, got.Len(), err, r.Chunks.Len())
		}
		if sum, a, err := tab.Record(r.Attr.Ino); err != nil || sum != r.Sum || a.Size != r.Attr.Size {
			t.Errorf("Record(%s) = %x, %+v, %v", r.Path, sum, a, err)
		}
	}
	n := 0
	if err := tab.Located(func(Origin, metadata.Attr) bool { n++; return true }); err != nil {
		t.Error(err)
	}
	if got := fs[4].Chunks.At(6); got != 0x000102ff {
		t.Errorf("At(6) = %x", got)
	}
	for name, change := range map[string]func(r *Record){
		"too few":    func(r *Record) { r.Chunks = r.Chunks[4:] },
		"too many":   func(r *Record) { r.Chunks += "abcd" },
		"half a one": func(r *Record) { r.Chunks += "ab" },
		"not striped": func(r *Record) {
			r.Attr.Layout = metadata.Layout{Kind: metadata.Local}
		},
		"very many": func(r *Record) {
			r.Attr.Size, r.Chunks = (MaxChunks+1)<<20, CRCs(strings.Repeat("abcd", MaxChunks+1))
		},
	} {
		r := striped("f", 3)
		if change(&r); !errors.Is(NewWriter(&bytes.Buffer{}).Add(r), syscall.EINVAL) {
			t.Errorf("%s: a record is taken, want EINVAL", name)
		}
	}
}
