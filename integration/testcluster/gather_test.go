package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
)

// openTo opens a file of a mount for writing.
func openTo(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flags, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // closed before, if the test got so far
	return f
}

// TestMountGathersWrites: small writes and appends through a mount cost few calls to other nodes, and all data is
// stored when the file is closed.
func TestMountGathersWrites(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 2})
	ms := c.Mount(t)
	for name, how := range map[string]struct{ flags, size int }{"writes": {0, 4096}, "appends": {os.O_APPEND, 100}} {
		f := openTo(t, filepath.Join(ms[0].Scratch, name), how.flags)
		const n = 10_000
		before := c.Nodes[0].Client.Stats()
		var want []byte
		for k := range n {
			p := bytes.Repeat([]byte{byte(k)}, how.size)
			if _, err := f.Write(p); err != nil {
				t.Fatal(err)
			}
			want = append(want, p...)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		s := c.Nodes[0].Client.Stats()
		through := n - int(s.Buffered-before.Buffered)/how.size
		if calls := through + int(s.Batches-before.Batches); calls > n/10 {
			t.Errorf("%s: %d calls for data", name, calls)
		}
		if calls := s.MetaRemote + s.MetaLocal - before.MetaRemote - before.MetaLocal; calls > n/10 {
			t.Errorf("%s: %d calls for metadata", name, calls)
		}
		b, err := os.ReadFile(filepath.Join(ms[1].Scratch, name))
		if err != nil || !bytes.Equal(b, want) {
			t.Errorf("%s: the other node reads %d bytes of %d, %v, or other ones", name, len(b), len(want), err)
		}
	}
}

// TestMountTellsLostWrites: an acknowledged write that could not be stored is reported by the next write, fsync or
// close of the descriptor it was written with, and of no other.
func TestMountTellsLostWrites(t *testing.T) {
	t.Parallel()
	tell := map[string]func(f *os.File) error{
		"write": func(f *os.File) error { _, err := f.Write([]byte("x")); return errors.Join(err, f.Close()) },
		"fsync": func(f *os.File) error { return errors.Join(f.Sync(), f.Close()) },
		"close": (*os.File).Close,
	}
	for _, no := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
		disk := &badDisk{FS: chunkstore.Machine}
		c := Start(t, Config{Nodes: 2, Disk: func(i int) chunkstore.FS {
			if i == 1 {
				return disk
			}
			return nil
		}})
		m := c.Mount(t, 0)[0]
		for name, told := range tell {
			path := filepath.Join(m.Scratch, name)
			put(t, c.Nodes[0], metadata.RootIno, name, []byte("at the start"), metadata.Layout{Kind: metadata.Local, Node: 1})
			f, other := openTo(t, path, os.O_APPEND), openTo(t, path, 0)
			if _, err := f.WriteString(", and"); err != nil {
				t.Fatal(err)
			}
			disk.fault.Store(&diskFault{write: no})
			gathered := c.Nodes[0].Client.Stats().Buffered
			if _, err := f.WriteString(" later"); err != nil {
				t.Fatalf("%s: a write that is gathered: %v", name, err)
			}
			if c.Nodes[0].Client.Stats().Buffered == gathered {
				t.Fatalf("%s: the write was not gathered", name)
			}
			if b, err := os.ReadFile(path); err != nil || !bytes.HasPrefix(b, []byte("at the start, and")) {
				t.Errorf("%s: a reader gets %q, %v", name, b, err)
			}
			if err := other.Close(); err != nil {
				t.Errorf("%s: who has not written is told %v", name, err)
			}
			disk.fault.Store(nil)
			if err := told(f); !errors.Is(err, no) {
				t.Errorf("%s tells %v, want %v", name, err, no)
			}
		}
		f := openTo(t, filepath.Join(m.Scratch, "write"), syscall.O_SYNC)
		disk.fault.Store(&diskFault{write: no})
		for range 3 {
			if _, err := f.WriteString("durable"); !errors.Is(err, no) {
				t.Errorf("a write with O_SYNC = %v, want %v", err, no)
			}
		}
		disk.fault.Store(nil)
		c.wantNoBuffers(t)
	}
}

// TestGatheredForLostNode: if a node is lost before buffered writes reach it, close returns an error.
func TestGatheredForLostNode(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	m := c.Mount(t, 0)[0]
	var fs []*os.File
	for k := range 8 {
		name := fmt.Sprint("f", k)
		put(t, c.Nodes[0], metadata.RootIno, name, nil, metadata.Layout{Kind: metadata.Local, Node: 3})
		f := openTo(t, filepath.Join(m.Scratch, name), 0)
		if _, err := f.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		fs = append(fs, f)
	}
	c.Cut(3)
	for _, f := range fs {
		if _, err := f.Write(make([]byte, 100)); err != nil && !errors.Is(err, syscall.EIO) {
			t.Errorf("write = %v", err)
		} else if cerr := f.Close(); err == nil && !errors.Is(cerr, syscall.EIO) {
			t.Errorf("close = %v, want EIO", cerr)
		}
	}
	if s := c.Nodes[0].Client.Stats(); s.Buffers != 0 {
		t.Errorf("%+v", s)
	}
}

// TestGatheredThroughBrokenLink: a connection that breaks and is re-established while buffered writes are sent loses
// nothing.
func TestGatheredThroughBrokenLink(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 2})
	put(t, c.Nodes[0], metadata.RootIno, "f", nil, metadata.Layout{Kind: metadata.Local, Node: 1})
	m := c.Mount(t, 0)[0]
	f := openTo(t, filepath.Join(m.Scratch, "f"), 0)
	var want []byte
	for k := range 3000 {
		if k%500 == 250 {
			c.Cut(1)
			c.Mend(1)
		}
		p := bytes.Repeat([]byte{byte(k)}, 4096)
		if _, err := f.Write(p); err != nil {
			t.Fatal(err)
		}
		want = append(want, p...)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err := live(c.Nodes[1], "f"); err != nil || !bytes.Equal(b, want) {
		t.Errorf("%d bytes of %d, %v, or other ones", len(b), len(want), err)
	}
}

// TestAppendsMeet: a node that is the only appender, and buffers its appends, continues when another node opens the
// file: all appends of both are whole.
func TestAppendsMeet(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 3})
	ctx := context.Background()
	a := put(t, c.Nodes[0], metadata.RootIno, "log", nil, metadata.Layout{})
	first := openFile(t, c.Nodes[1], a.Ino).Writer()
	for k := range 200 {
		if _, err := first.Append(ctx, record(0, k)); err != nil {
			t.Fatal(err)
		}
	}
	if s := c.Nodes[1].Client.Stats(); s.Buffered == 0 {
		t.Error("nothing was gathered")
	}
	second := openFile(t, c.Nodes[2], a.Ino).Writer()
	for k := range 200 {
		if _, err := second.Append(ctx, record(1, k)); err != nil {
			t.Fatal(err)
		}
		if _, err := first.Append(ctx, record(0, 200+k)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(first.Close(ctx), second.Close(ctx)); err != nil {
		t.Fatal(err)
	}
	b, err := live(c.Nodes[0], "log")
	if err != nil {
		t.Fatal(err)
	}
	all, err := records(b, true)
	if err != nil || len(all) != 600 {
		t.Errorf("%d records, %v, want 600", len(all), err)
	}
}

// countedDisk counts syncs.
type countedDisk struct {
	chunkstore.FS
	syncs atomic.Int64
}

func (d *countedDisk) Open(path string, flags int) (chunkstore.File, error) {
	f, err := d.FS.Open(path, flags)
	if err != nil {
		return nil, err
	}
	return &countedDiskFile{f, d}, nil
}

type countedDiskFile struct {
	chunkstore.File
	disk *countedDisk
}

func (f *countedDiskFile) Sync() error {
	f.disk.syncs.Add(1)
	return f.File.Sync()
}

// TestSyncedWrites: a write with O_SYNC is durable on its storing node when it returns, for every way to write; a
// write without it is not.
func TestSyncedWrites(t *testing.T) {
	t.Parallel()
	disk := &countedDisk{FS: chunkstore.Machine}
	c := Start(t, Config{Nodes: 2, Disk: func(i int) chunkstore.FS {
		if i == 1 {
			return disk
		}
		return nil
	}})
	m := c.Mount(t, 0)[0]
	for name, flags := range map[string]int{
		"read and write": os.O_RDWR, "write": os.O_WRONLY, "append": os.O_WRONLY | os.O_APPEND, "past the cache": os.O_RDWR | syscall.O_DIRECT,
	} {
		put(t, c.Nodes[0], metadata.RootIno, name, nil, metadata.Layout{Kind: metadata.Local, Node: 1})
		for _, sync := range []int{0, syscall.O_DSYNC, syscall.O_SYNC} {
			f, err := os.OpenFile(filepath.Join(m.Scratch, name), flags|sync, 0)
			if err != nil {
				t.Fatal(err)
			}
			for k := range 5 {
				before := disk.syncs.Load()
				if _, err := f.Write(bytes.Repeat([]byte{byte(k)}, 4096)); err != nil {
					t.Fatal(err)
				}
				if synced := disk.syncs.Load() > before; synced != (sync != 0) {
					t.Errorf("%s, flags %#x: write %d is durable: %v", name, sync, k, synced)
				}
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestReadersSeeWrites: data written through a descriptor without kernel page caching is seen on this node at once,
// by read and by stat.
func TestReadersSeeWrites(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 2})
	m := c.Mount(t, 0)[0]
	path := filepath.Join(m.Scratch, "f")
	if err := os.WriteFile(path, make([]byte, 8192), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w := openTo(t, path, 0)
	b := make([]byte, 100)
	for k := range 200 {
		if _, err := r.ReadAt(b, int64(k)); err != nil { // the kernel now caches this page
			t.Fatal(err)
		}
		p := []byte{byte(k + 1)}
		at := int64(k) + 50
		if _, err := w.WriteAt(p, at); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadAt(b[:1], at); err != nil || b[0] != p[0] {
			t.Fatalf("byte %d is %d, %v, want %d", at, b[0], err, p[0])
		}
		if _, err := w.WriteAt(p, 8192+int64(k)); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Size() != 8192+int64(k)+1 {
			t.Fatalf("stat: %v, %v", fi.Size(), err)
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
