package chunkstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/datapathtest"
	"github.com/bivouacfs/bivouac/metadata"
)

const ino = metadata.FirstIno

func open(t *testing.T, cfg Config) *Store {
	t.Helper()
	if cfg.Dirs == nil {
		cfg.Dirs = []string{t.TempDir()}
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSuite(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  func(t *testing.T) Config
	}{
		{"one directory", func(t *testing.T) Config { return Config{} }},
		{"three directories", func(t *testing.T) Config {
			return Config{Dirs: []string{t.TempDir(), t.TempDir(), t.TempDir()}, Capacity: 1 << 30}
		}},
		{"one descriptor", func(t *testing.T) Config { return Config{MaxOpen: 1} }},
		{"three descriptors", func(t *testing.T) Config { return Config{MaxOpen: 3} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			datapathtest.Run(t, func(t *testing.T) datapath.Store { return open(t, c.cfg(t)) })
		})
	}
}

func write(t *testing.T, s *Store, i metadata.Ino, n int, off int64) {
	t.Helper()
	if err := s.WriteAt(t.Context(), i, make([]byte, n), off); err != nil {
		t.Fatalf("WriteAt(%v, %d, %d) = %v", i, n, off, err)
	}
}

func wantErr(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s = %v, want %v", what, err, want)
	}
}

// wantSpace checks the counted use, and that no space is reserved.
func wantSpace(t *testing.T, s *Store, used, objects int64) {
	t.Helper()
	sp, err := s.Space(t.Context())
	if err != nil || sp.Used != used || sp.Objects != objects {
		t.Fatalf("Space() = %+v, %v, want %d used by %d objects", sp, err, used, objects)
	}
	if r, h := s.usage.reserved.Load(), s.usage.held.Load(); r != 0 || h != used {
		t.Fatalf("%d bytes are reserved and %d held after all writes, want 0 and %d", r, h, used)
	}
	for _, p := range s.places {
		if n := p.disk.pending.Load(); n != 0 {
			t.Fatalf("%d bytes are pending on %s after all writes", n, p.dir)
		}
		used, objects = used-p.used.Load(), objects-p.objects.Load()
	}
	if used != 0 || objects != 0 {
		t.Fatalf("the directories have %d bytes and %d objects less than the store", used, objects)
	}
}

// onDisk returns the disk space that the objects actually take.
func onDisk(t *testing.T, s *Store) (used, objects int64) {
	t.Helper()
	for _, d := range s.cfg.Dirs {
		err := filepath.WalkDir(filepath.Join(d, objectsDir), func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return err
			}
			used, objects = used+statOf(&st).Alloc, objects+1
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return used, objects
}

func TestNames(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	s := open(t, Config{Dirs: dirs})
	write(t, s, metadata.SealedIno(1, 2, 0x1fe), 1, 0)
	found := 0
	for _, d := range dirs {
		if b, err := os.ReadFile(filepath.Join(d, "objects/fe/80010002000001fe")); err == nil && len(b) == 1 {
			found++
		}
	}
	if found != 1 {
		t.Errorf("the object has its name in %d directories, want 1", found)
	}
}

func TestOpen(t *testing.T) {
	s := open(t, Config{})
	_, err := s.Open(ino)
	wantErr(t, "Open of no object", err, syscall.ENOENT)
	if err := s.WriteAt(t.Context(), ino, []byte("bytes"), 0); err != nil {
		t.Fatal(err)
	}
	f, err := s.Open(ino)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != "bytes" {
		t.Errorf("the file holds %q, %v", b, err)
	}
}

func TestConfig(t *testing.T) {
	if _, err := Open(Config{Capacity: -1, MaxOpen: -1}); err == nil {
		t.Error("a bad Config is taken")
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Config{Dirs: []string{file}})
	wantErr(t, "Open on a file", err, syscall.ENOTDIR)
}

func TestQuota(t *testing.T) {
	s := open(t, Config{Capacity: 64 << 10})
	write(t, s, ino, 60<<10, 0)
	wantErr(t, "8 KiB more", s.WriteAt(t.Context(), ino, make([]byte, 8<<10), 60<<10), syscall.ENOSPC)
	wantErr(t, "8 KiB of a new object", s.WriteAt(t.Context(), ino+1, make([]byte, 8<<10), 0), syscall.ENOSPC)
	wantSpace(t, s, 60<<10, 1)
	write(t, s, ino, 60<<10, 0) // overwriting needs no space
	write(t, s, ino, 10, 5)
	wantSpace(t, s, 60<<10, 1)
	write(t, s, ino, 4<<10, 60<<10)
	wantSpace(t, s, 64<<10, 1)
	wantErr(t, "one byte of a new object", s.WriteAt(t.Context(), ino+1, []byte("x"), 0), syscall.ENOSPC)
	if sp, _ := s.Space(t.Context()); sp.Free != 0 || sp.Capacity != 64<<10 {
		t.Errorf("Space() = %+v, want nothing free", sp)
	}
	if err := s.Truncate(t.Context(), ino, 10); err != nil {
		t.Fatal(err)
	}
	wantSpace(t, s, 4<<10, 1)
	write(t, s, ino+1, 60<<10, 1<<30) // a hole costs nothing
	wantSpace(t, s, 64<<10, 2)
	write(t, s, ino+1, 4<<10, 1<<30) // overwriting needs no space in a sparse object either
	wantErr(t, "a write into the hole", s.WriteAt(t.Context(), ino+1, []byte("x"), 1<<20), syscall.ENOSPC)
	wantErr(t, "a write half in the hole", s.WriteAt(t.Context(), ino+1, make([]byte, 8<<10), 1<<30-4<<10), syscall.ENOSPC)
	wantSpace(t, s, 64<<10, 2)
}

// TestAllocateKeepsItsPromise: writes to allocated space succeed on a full store; others fail.
func TestAllocateKeepsItsPromise(t *testing.T) {
	s := open(t, Config{Capacity: 64 << 10})
	if err := s.Allocate(t.Context(), ino, 8<<10, 32<<10); err != nil {
		t.Fatal(err)
	}
	wantSpace(t, s, 32<<10, 1)
	wantErr(t, "Allocate of more", s.Allocate(t.Context(), ino+1, 0, 36<<10), syscall.ENOSPC)
	write(t, s, ino+1, 32<<10, 0)
	wantErr(t, "a write elsewhere", s.WriteAt(t.Context(), ino+1, []byte("x"), 32<<10), syscall.ENOSPC)
	for off := int64(8 << 10); off < 40<<10; off += 5000 {
		write(t, s, ino, int(min(5000, 40<<10-off)), off)
	}
	wantErr(t, "a write behind it", s.WriteAt(t.Context(), ino, []byte("x"), 40<<10), syscall.ENOSPC)
	if err := s.Allocate(t.Context(), ino, 8<<10, 32<<10); err != nil {
		t.Errorf("Allocate of what is written = %v", err)
	}
	wantSpace(t, s, 64<<10, 2)
	if err := s.Punch(t.Context(), ino, 0, 24<<10); err != nil {
		t.Fatal(err)
	}
	write(t, s, ino+1, 16<<10, 32<<10)
	wantSpace(t, s, 64<<10, 2)
}

// TestQuotaTogether lets more writers than there is room for write to new and shared objects, with removals in between.
// The quota must hold, and the counters must agree with the disk.
func TestQuotaTogether(t *testing.T) {
	const quota = 1 << 20
	s := open(t, Config{Capacity: quota, MaxOpen: 5})
	var full atomic.Int64
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 150 {
				id := ino + metadata.Ino((w+i)%30)
				err := s.WriteAt(t.Context(), id, make([]byte, 5000), int64(i%20)*6000)
				switch {
				case errors.Is(err, syscall.ENOSPC):
					full.Add(1)
					err = s.Remove(t.Context(), id)
				case i%40 == 0:
					err = s.Truncate(t.Context(), id, 7000)
				}
				if err != nil {
					t.Error(err)
				}
				if u := s.usage.used.Load(); u > quota {
					t.Errorf("%d bytes used of %d", u, quota)
				}
			}
		})
	}
	wg.Wait()
	if full.Load() == 0 {
		t.Error("the store was never full: the test tests nothing")
	}
	used, objects := onDisk(t, s)
	wantSpace(t, s, used, objects)
}

func TestRestart(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	s := open(t, Config{Dirs: dirs})
	for i := range metadata.Ino(50) {
		write(t, s, ino+i, 5000, int64(i)<<20)
	}
	used, objects := s.usage.used.Load(), s.usage.objects.Load()
	if objects != 50 || used < 50*5000 || used > 50*12<<10 {
		t.Fatalf("%d bytes used by %d objects", used, objects)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "WriteAt after Close", s.WriteAt(t.Context(), ino, []byte("x"), 0), syscall.ESHUTDOWN)
	for _, name := range []string{"objects/00/lost+found", "objects/00/0000000000000401", "objects/01/401"} {
		path := filepath.Join(dirs[0], name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, Config{Dirs: dirs})
	wantSpace(t, s, used, objects)
	for i := range metadata.Ino(50) {
		if err := s.Remove(t.Context(), ino+i); err != nil {
			t.Fatal(err)
		}
	}
	wantSpace(t, s, 0, 0)
}

func TestRemoveAll(t *testing.T) {
	s := open(t, Config{Dirs: []string{t.TempDir(), t.TempDir()}})
	for i := range uint32(40) {
		write(t, s, metadata.SealedIno(metadata.DatasetID(1+i%2), 0, i), 100, 0)
	}
	n, err := s.RemoveAll(func(i metadata.Ino) bool { return i.Dataset() == 1 })
	if n != 20 || err != nil {
		t.Errorf("RemoveAll() = %d, %v, want 20", n, err)
	}
	wantSpace(t, s, 20*4096, 20)
}

// TestList: every object is listed in exactly one part, whichever disk it is on.
func TestList(t *testing.T) {
	s := open(t, Config{Dirs: []string{t.TempDir(), t.TempDir()}})
	want := make(map[metadata.Ino]bool)
	for i := range uint64(600) {
		id := metadata.LiveIno(metadata.NodeID(i%3), 1024+i)
		write(t, s, id, 1, 0)
		want[id] = i%2 == 0
	}
	for part := range Parts {
		inos, err := s.List(uint8(part), func(i metadata.Ino) bool { return i%2 == 0 })
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range inos {
			if !want[i] || int(i%Parts) != part {
				t.Errorf("part %d has %v", part, i)
			}
			delete(want, i)
		}
	}
	for i, even := range want {
		if even {
			t.Errorf("%v is in no part", i)
		}
	}
}

// TestDescriptors counts descriptors while many objects are used concurrently.
func TestDescriptors(t *testing.T) {
	fs := &faultFS{FS: osFS{}}
	s := open(t, Config{MaxOpen: 6, FS: fs})
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 100 {
				id := ino + metadata.Ino((w*7+i)%40)
				want := fmt.Appendf(nil, "%d", id)
				err := s.WriteAt(t.Context(), id, want, 0)
				got := make([]byte, len(want))
				n, rerr := s.ReadAt(t.Context(), id, got, 0)
				if err = errors.Join(err, rerr); err != nil || n != 0 && !bytes.Equal(got, want) {
					t.Errorf("object %d reads %q, %v", id, got[:n], err)
				}
				if i%10 == 0 {
					if err := s.Remove(t.Context(), id); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if most := fs.most.Load(); most > 6 {
		t.Errorf("%d descriptors were open at once, want at most 6", most)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := fs.openNow.Load(); n != 0 {
		t.Errorf("%d descriptors are open after Close", n)
	}
}

// smallDisk mounts a separate filesystem.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bivouac-test", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestDiskFull fills a real disk.
func TestDiskFull(t *testing.T) {
	dir := smallDisk(t, "1m")
	s := open(t, Config{Dirs: []string{dir}})
	sp, err := s.Space(t.Context())
	if err != nil || sp.Capacity != 1<<20 || sp.Free != 1<<20 {
		t.Fatalf("Space() = %+v, %v, want the 1 MiB of the disk", sp, err)
	}
	write(t, s, ino, 1<<19, 0)
	wantErr(t, "a write that the disk cannot hold", s.WriteAt(t.Context(), ino+1, make([]byte, 1<<20), 0), syscall.ENOSPC)
	used, objects := onDisk(t, s)
	wantSpace(t, s, used, objects)
	if err := s.Remove(t.Context(), ino+1); err != nil {
		t.Fatal(err)
	}
	wantSpace(t, s, 1<<19, 1)
	write(t, s, ino+2, 1<<19, 0)
}
