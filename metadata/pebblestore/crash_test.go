package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
)

const (
	reg = syscall.S_IFREG
	dir = syscall.S_IFDIR
)

var ctx = context.Background()

// check walks a store after a crash: every entry with its home here has its inode, link counts match the entries, and
// orphans have none.
func check(t *testing.T, s *Store) (names map[string]metadata.Ino) {
	t.Helper()
	names = make(map[string]metadata.Ino)
	links, attrs := map[metadata.Ino]uint32{}, map[metadata.Ino]metadata.Attr{}
	var visit func(ino metadata.Ino, path string)
	visit = func(ino metadata.Ino, path string) {
		es, err := s.ReadDir(ctx, ino, "", 1<<20)
		if err != nil {
			t.Fatalf("ReadDir(%q): %v", path, err)
		}
		subs := uint32(0)
		for _, e := range es {
			if e.Attr == nil {
				t.Fatalf("%s/%s has no inode", path, e.Name)
			}
			names[path+"/"+e.Name] = e.Ino
			links[e.Ino]++
			attrs[e.Ino] = *e.Attr
			if isDir(e.Mode) {
				subs++
				visit(e.Ino, path+"/"+e.Name)
			}
		}
		if a, err := s.Getattr(ctx, ino); err != nil || a.Nlink != 2+subs {
			t.Fatalf("directory %q has %d links, %v, and %d directories", path, a.Nlink, err, subs)
		}
	}
	visit(metadata.RootIno, "")
	for ino, a := range attrs {
		if !isDir(a.Mode) && a.Nlink != links[ino] {
			t.Fatalf("inode %v has %d links and %d names", ino, a.Nlink, links[ino])
		}
	}
	err := s.Orphans(ctx, func(a metadata.Attr) bool {
		if a.Nlink != 0 || links[a.Ino] != 0 {
			t.Fatalf("orphan %v has %d links and %d names", a.Ino, a.Nlink, links[a.Ino])
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestCrash stops the machine during work: everything confirmed by Sync is present, no operation is present in part,
// and no inode number is reused.
func TestCrash(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, percent := range []int{0, 30, 70, 100} {
		t.Run(fmt.Sprintf("%d%% of the rest", percent), func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			s := open(t, Config{FS: fs})
			used := map[metadata.Ino]bool{}
			synced := work(t, s, used)
			crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, 0))})
			s = open(t, Config{FS: crashed})
			names := check(t, s)
			for path, ino := range synced {
				if names[path] != ino {
					t.Errorf("%s was synced as %v, and is %v", path, ino, names[path])
				}
			}
			for i := range 10 {
				a, err := s.Create(ctx, metadata.RootIno, fmt.Sprint("after", i), metadata.New{Mode: reg})
				if err != nil || used[a.Ino] {
					t.Fatalf("Create after the crash = %v, %v: used before", a.Ino, err)
				}
			}
		})
	}
}

// work performs operations of all kinds, syncs, and performs more. It returns the names that were synced and not
// changed since.
func work(t *testing.T, s *Store, used map[metadata.Ino]bool) map[string]metadata.Ino {
	t.Helper()
	synced := map[string]metadata.Ino{}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	churn := func(kind string) {
		d, err := s.Mkdir(ctx, metadata.RootIno, kind, metadata.New{Mode: 0o700})
		must(err)
		used[d.Ino] = true
		for i := range 60 {
			name := fmt.Sprintf("%s%d", kind, i)
			a, err := s.Create(ctx, d.Ino, name, metadata.New{Mode: reg})
			must(err)
			used[a.Ino] = true
			switch i % 4 {
			case 0:
				_, err = s.Unlink(ctx, d.Ino, name)
			case 1:
				_, err = s.Link(ctx, a.Ino, metadata.RootIno, name)
			case 2:
				_, err = s.Rename(ctx, metadata.Rename{Dir: d.Ino, Name: name, NewDir: metadata.RootIno, NewName: name})
			}
			must(err)
		}
	}
	churn("early")
	must(s.Sync(ctx))
	for path, ino := range check(t, s) {
		synced[path] = ino
	}
	churn("late")
	return synced
}

// TestKill kills the daemon, not the machine: every acknowledged operation is kept.
func TestKill(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := open(t, Config{FS: fs})
	work(t, s, map[metadata.Ino]bool{})
	want := check(t, s)
	killed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	got := check(t, open(t, Config{FS: killed}))
	if len(got) != len(want) {
		t.Errorf("%d names after the kill, want %d", len(got), len(want))
	}
	for path, ino := range want {
		if got[path] != ino {
			t.Errorf("%s was acknowledged as %v, and is %v", path, ino, got[path])
		}
	}
}

// TestSyncEveryOperation: with Config.Sync no operation is lost.
func TestSyncEveryOperation(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := open(t, Config{FS: fs, Sync: true})
	work(t, s, map[metadata.Ino]bool{})
	want := check(t, s)
	got := check(t, open(t, Config{FS: fs.CrashClone(vfs.CrashCloneCfg{})}))
	if len(got) != len(want) {
		t.Errorf("%d names after the crash, want %d", len(got), len(want))
	}
}

// TestCrashWhileWorking clones the disk during operations.
func TestCrashWhileWorking(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := open(t, Config{FS: fs})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	finish := sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	defer finish()
	for i := range 4 {
		wg.Go(func() {
			for j := 0; ; j++ {
				select {
				case <-stop:
					return
				default:
				}
				churnOne(t, s, fmt.Sprintf("%d-%d", i, j%7))
			}
		})
	}
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for range 8 {
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng})
		check(t, open(t, Config{FS: clone}))
	}
	finish()
	check(t, s)
}

func churnOne(t *testing.T, s *Store, name string) {
	d, err := s.Mkdir(ctx, metadata.RootIno, name, metadata.New{Mode: 0o700})
	if err != nil {
		t.Errorf("Mkdir: %v", err)
		return
	}
	a, err := s.Create(ctx, d.Ino, "f", metadata.New{Mode: reg})
	err = errors.Join(err, func() error {
		_, err := s.Link(ctx, a.Ino, metadata.RootIno, name+"l")
		return err
	}())
	_, e := s.Rename(ctx, metadata.Rename{Dir: d.Ino, Name: "f", NewDir: metadata.RootIno, NewName: name + "r"})
	err = errors.Join(err, e)
	for _, n := range []string{name + "l", name + "r"} {
		_, e := s.Unlink(ctx, metadata.RootIno, n)
		err = errors.Join(err, e)
	}
	err = errors.Join(err, s.Reap(ctx, a.Ino), s.Rmdir(ctx, metadata.RootIno, name))
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// TestCounterAfterReopen: a clean restart wastes at most one block and repeats no number, even if the block was never
// used.
func TestCounterAfterReopen(t *testing.T) {
	fs := vfs.NewMem()
	seen := map[metadata.Ino]bool{}
	for range 3 {
		s, err := Open(Config{Dir: "m", FS: fs, Self: 5})
		if err != nil {
			t.Fatal(err)
		}
		tx, err := s.Begin()
		if ino := metadata.Ino(tx); err != nil || seen[ino] || ino.Home() != 5 || ino.Counter() < uint64(metadata.FirstIno) {
			t.Fatalf("Begin = %v, %v", tx, err)
		}
		seen[metadata.Ino(tx)] = true
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
