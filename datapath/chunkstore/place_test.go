package chunkstore

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// spreadOf returns the bytes and the number of objects in each directory.
func spreadOf(s *Store) (used, objects []int64) {
	for _, p := range s.places {
		used, objects = append(used, p.used.Load()), append(objects, p.objects.Load())
	}
	return used, objects
}

func even(t *testing.T, what string, n []int64, slack int64) {
	t.Helper()
	for _, a := range n {
		for _, b := range n {
			if a-b > slack {
				t.Fatalf("%s by directory: %v, want a difference of at most %d", what, n, slack)
			}
		}
	}
}

// TestDirsAreUsedEvenly: new objects are balanced first by number and later by bytes; after a restart all are found and
// counted.
func TestDirsAreUsedEvenly(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	s := open(t, Config{Dirs: dirs})
	for i := range metadata.Ino(9) { // created first, then written
		write(t, s, ino+i, 0, 0)
	}
	for i := range metadata.Ino(9) {
		write(t, s, ino+i, 1<<20, 0)
	}
	used, objects := spreadOf(s)
	even(t, "objects that are made at once", objects, 0)
	even(t, "their bytes", used, 0)
	sizes := []int{5 << 20, 100, 3 << 20, 1 << 20, 7000, 1 << 20, 2 << 20, 100, 100, 1 << 19, 1 << 20, 1 << 20}
	for i, n := range sizes {
		write(t, s, ino+100+metadata.Ino(i), n, 0)
	}
	used, _ = spreadOf(s)
	even(t, "bytes", used, 2<<20)
	for i := range metadata.Ino(300) {
		write(t, s, ino+1000+i, 4096, 0)
	}
	used, _ = spreadOf(s)
	even(t, "bytes after many small ones", used, 2<<20)
	all, n := onDisk(t, s)
	wantSpace(t, s, all, n)

	s = open(t, Config{Dirs: []string{dirs[1], dirs[2], dirs[0]}})
	wantSpace(t, s, all, n)
	for i, n := range sizes {
		id := ino + 100 + metadata.Ino(i)
		if got, err := s.ReadAt(t.Context(), id, make([]byte, n+1), 0); got != n || err != nil {
			t.Errorf("object %d of %d bytes reads %d, %v after a restart", i, n, got, err)
		}
		f, err := s.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // opened read-only
		write(t, s, id, 10, 0)
		if err := s.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if _, left := onDisk(t, s); left != n-int64(len(sizes)) {
		t.Errorf("%d objects are left, want %d: some were made twice", left, n-int64(len(sizes)))
	}
}

// TestOneDirFull: while one disk is full, new objects go to the others.
func TestOneDirFull(t *testing.T) {
	small, large := smallDisk(t, "2m"), smallDisk(t, "16m")
	s := open(t, Config{Dirs: []string{small, large}})
	written := int64(0)
	for i := range metadata.Ino(14) {
		write(t, s, ino+i, 1<<20, 0)
		written += 1 << 20
	}
	used, _ := spreadOf(s)
	if used[0] == 0 || used[0] > 2<<20 || used[0]+used[1] != written {
		t.Errorf("bytes by directory: %v, want the small disk used, and the rest on the other", used)
	}
	full := error(nil)
	for i := metadata.Ino(14); i < 30 && full == nil; i++ {
		full = s.WriteAt(t.Context(), ino+i, make([]byte, 1<<20), 0)
	}
	wantErr(t, "a write when both are full", full, syscall.ENOSPC)
	sp, err := s.Space(t.Context())
	if err != nil || sp.Capacity != sp.Used+sp.Free || sp.Capacity > 18<<20 || sp.Capacity < 17<<20 {
		t.Errorf("Space() = %+v, %v, want a capacity of about 18 MiB", sp, err)
	}
}

// TestReserve: objects leave the reserved bytes of the first disk free, also with concurrent writers, and overwriting
// and removal still work.
func TestReserve(t *testing.T) {
	dir := smallDisk(t, "32m")
	s := open(t, Config{Dirs: []string{dir}, Reserve: 8 << 20, Capacity: 1 << 30})
	if sp, err := s.Space(t.Context()); err != nil || sp.Free != 24<<20 || sp.Capacity != 24<<20 || !s.Room() {
		t.Errorf("Space() = %+v, %v, want 24 MiB", sp, err)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 300 { // more than fits on the disk, in any interleaving of the writers
				err := s.WriteAt(ctx, ino+metadata.Ino(w), make([]byte, 100_000), int64(i)*100_000)
				if errors.Is(err, syscall.ENOSPC) {
					return
				}
				if err != nil {
					t.Error(err)
				}
			}
			t.Error("30 MB of a writer fit")
		})
	}
	wg.Wait()
	now, err := osFS{}.Disk(dir)
	if err != nil || now.Free < 8<<20-1<<20 { // minus the directories
		t.Fatalf("%d bytes are free on the disk, %v, want 8 MiB", now.Free, err)
	}
	if sp, err := s.Space(t.Context()); err != nil || sp.Free > 2<<20 {
		t.Errorf("Space() = %+v, %v, want nearly nothing free", sp, err)
	}
	write(t, s, ino, 50_000, 0)
	rest := make([]byte, now.Free-2<<20)
	if err := os.WriteFile(dir+"/of others", rest, 0o600); err != nil {
		t.Fatal(err)
	}
	if s.Room() {
		t.Error("Room() with 2 MiB of the 8 left")
	}
	write(t, s, ino, 50_000, 0)
	for w := range 8 {
		if err := s.Remove(t.Context(), ino+metadata.Ino(w)); err != nil {
			t.Error(err)
		}
	}
	if !s.Room() {
		t.Error("no Room() after all is removed")
	}
	write(t, s, ino, 1<<20, 0)
}

// TestReserveOfSmallDisk: at most half of a disk is reserved.
func TestReserveOfSmallDisk(t *testing.T) {
	s := open(t, Config{Dirs: []string{smallDisk(t, "4m")}, Reserve: 1 << 30})
	if sp, err := s.Space(t.Context()); err != nil || sp.Free != 2<<20 {
		t.Errorf("Space() = %+v, %v, want 2 MiB of 4", sp, err)
	}
}

// TestPlaceFaults: a disk that cannot be examined fails the write, and no space stays reserved.
func TestPlaceFaults(t *testing.T) {
	for dirs := 1; dirs <= 2; dirs++ {
		t.Run(fmt.Sprint(dirs, " directories"), func(t *testing.T) {
			fs := &faultFS{FS: osFS{}}
			s := open(t, Config{Dirs: []string{t.TempDir(), t.TempDir()}[:dirs], FS: fs})
			fs.fault = failing("disk", 0, syscall.EIO)
			wantErr(t, "WriteAt", s.WriteAt(ctx, ino, make([]byte, 5000), 0), syscall.EIO)
			fs.fault = nil
			write(t, s, ino, 5000, 0)
			used, objects := onDisk(t, s)
			wantSpace(t, s, used, objects)
		})
	}
}

// TestPath: objects have the paths described in the package comment, however the directory is spelled.
func TestPath(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Config{Dirs: []string{dir + "/./x//"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const ino = 0x0123_4567_89ab_cd0e
	if got, want := s.places[0].path(ino), dir+"/x/objects/0e/0123456789abcd0e"; got != want {
		t.Errorf("path = %s, want %s", got, want)
	}
}
