package chunkstore

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
)

// earlier creates stores in dirs, writes n objects and keeps those with an even number, for stores below next.
func earlier(t *testing.T, dirs, next []string, n int) [][]byte {
	t.Helper()
	s := open(t, Config{Dirs: dirs})
	r := rand.New(rand.NewPCG(1, 2))
	all, list := make([][]byte, n), []KeptObject(nil)
	for i := range all {
		all[i] = make([]byte, 1+r.IntN(3*block))
		for k := range all[i] {
			all[i][k] = byte(r.Uint32())
		}
		at := metadata.SealedIno(1, 0, uint32(i))
		if err := s.WriteAt(ctx, at, all[i], 0); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			list = append(list, KeptObject{keyOf(i), at, int64(len(all[i])), xxh3.Hash128(all[i]).Bytes()})
		}
	}
	write(t, s, ino, block, 0) // belongs to scratch
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(list); err != nil {
		t.Fatal(err)
	}
	for i, d := range dirs {
		if err := os.Rename(filepath.Join(d, KeepDir), filepath.Join(next[i], KeptPrefix+"7.0")); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(d); err != nil || len(left) != 0 {
			t.Fatalf("%v, %v are left in %s", left, err, d)
		}
	}
	return all
}

func keyOf(i int) [16]byte { return xxh3.Hash128([]byte{byte(i)}).Bytes() }

// later opens a store that may adopt n objects of an earlier one on two disks.
func later(t *testing.T, n int) (s *Store, dirs []string, all [][]byte) {
	t.Helper()
	dirs = []string{t.TempDir(), t.TempDir()}
	all = earlier(t, []string{t.TempDir(), t.TempDir()}, dirs, n)
	return open(t, Config{Dirs: dirs}), dirs, all
}

// TestKept: a later store adopts the kept objects, each once, and counts them; no other data of the earlier store
// remains.
func TestKept(t *testing.T) {
	const n = 40
	s, dirs, all := later(t, n)
	before, err := s.Space(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s.usage.objects.Load() != 0 {
		t.Errorf("%d objects before any is adopted", s.usage.objects.Load())
	}
	for i := range n {
		at := metadata.SealedIno(3, 0, uint32(1000+i))
		sum, ok := s.AdoptKept(ctx, keyOf(i), at)
		if ok != (i%2 == 0) {
			t.Fatalf("object %d: adopted %v", i, ok)
		}
		if !ok {
			continue
		}
		p := make([]byte, len(all[i])+1)
		if k, err := s.ReadAt(ctx, at, p, 0); err != nil || !bytes.Equal(p[:k], all[i]) || sum != xxh3.Hash128(all[i]).Bytes() {
			t.Fatalf("object %d: %d bytes, %v, checksum %x", i, k, err, sum)
		}
		if _, again := s.AdoptKept(ctx, keyOf(i), at+1); again {
			t.Fatalf("object %d is adopted twice", i)
		}
	}
	if s.HasKept() || s.keptBytes() != 0 || s.usage.objects.Load() != n/2 {
		t.Errorf("%d kept bytes are left, and %d objects", s.keptBytes(), s.usage.objects.Load())
	}
	if after, err := s.Space(ctx); err != nil || after.Free > before.Free-s.usage.used.Load()+1<<20 {
		t.Errorf("%d bytes free before, %d after %d were adopted, %v", before.Free, after.Free, s.usage.used.Load(), err)
	}
	for _, d := range dirs {
		if found, _ := filepath.Glob(filepath.Join(d, KeptPrefix+"*", "*", "*")); len(found) > 0 {
			t.Errorf("%v are left", found)
		}
	}
}

// TestKeptDamaged: changed bytes, files that are missing or links, and a damaged index are not adopted.
func TestKeptDamaged(t *testing.T) {
	damages := map[string]func(path, index string) error{
		"a flipped bit": func(path, _ string) error {
			b, err := os.ReadFile(path)
			if err == nil {
				b[len(b)/2] ^= 4
				err = os.WriteFile(path, b, 0o600)
			}
			return err
		},
		"a cut file":  func(path, _ string) error { return os.Truncate(path, 0) },
		"a lost file": func(path, _ string) error { return os.Remove(path) },
		"a link": func(path, _ string) error {
			to := path + ".moved"
			return errors.Join(os.Rename(path, to), os.Symlink(to, path))
		},
		"a cut index": func(_, index string) error { return os.Truncate(index, 60) },
		"an index of zeros": func(_, index string) error {
			return os.WriteFile(index, make([]byte, 1000), 0o600)
		},
	}
	for what, damage := range damages {
		dirs := []string{t.TempDir()}
		earlier(t, []string{t.TempDir()}, dirs, 1)
		set := filepath.Join(dirs[0], KeptPrefix+"7.0")
		found, _ := filepath.Glob(filepath.Join(set, "*", "*"))
		if len(found) != 1 {
			t.Fatalf("%v are kept, want one object", found)
		}
		if err := damage(found[0], filepath.Join(set, keptIndex)); err != nil {
			t.Fatal(err)
		}
		s := open(t, Config{Dirs: dirs})
		at := metadata.SealedIno(2, 0, 1)
		if _, ok := s.AdoptKept(ctx, keyOf(0), at); ok {
			t.Errorf("%s: adopted", what)
		}
		if n, err := s.ReadAt(ctx, at, make([]byte, 10), 0); n != 0 || err != nil {
			t.Errorf("%s: read of the object = %d, %v, want none", what, n, err)
		}
	}
}

// TestKeptGivesRoom: kept objects count as free space, and are removed when a write needs the room.
func TestKeptGivesRoom(t *testing.T) {
	dir := smallDisk(t, "16m")
	old := filepath.Join(dir, "old")
	e := open(t, Config{Dirs: []string{old}})
	at := metadata.SealedIno(1, 0, 1)
	if err := e.WriteAt(ctx, at, make([]byte, 10<<20), 0); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.Keep([]KeptObject{{Ino: at, Size: 10 << 20}}); err != nil {
		t.Fatal(err)
	}
	now := filepath.Join(dir, "now")
	if err := os.Mkdir(now, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(old, KeepDir), filepath.Join(now, KeptPrefix+"7.0")); err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{Dirs: []string{now}})
	sp, err := s.Space(ctx)
	if err != nil || sp.Free < 15<<20 || !s.HasKept() {
		t.Fatalf("Space() = %+v, %v, kept %v, want 16 MiB free", sp, err, s.HasKept())
	}
	write(t, s, ino, 12<<20, 0)
	if s.HasKept() {
		t.Error("it is still kept")
	}
}
