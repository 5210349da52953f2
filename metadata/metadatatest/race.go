package metadatatest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

const racers = 8

// together runs fn in racers goroutines and waits for all.
func together(fn func(i int)) {
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}

// expect records an unexpected error.
func (f *fixture) expect(err error, allowed ...error) {
	f.Helper()
	for _, a := range allowed {
		if errors.Is(err, a) {
			return
		}
	}
	if err != nil {
		f.Errorf("%v, want one of %v", err, allowed)
	}
}

// testCreateRace: of many creates of one name one wins, and the others get its inode.
func testCreateRace(f *fixture) {
	for round := range 20 {
		name := fmt.Sprint("n", round)
		var won atomic.Int32
		var inos [racers]metadata.Ino
		together(func(i int) {
			a, err := f.s.Create(ctx, root, name, metadata.New{Mode: reg | 0o600})
			f.expect(err, syscall.EEXIST)
			if err == nil {
				won.Add(1)
			}
			inos[i] = a.Ino
		})
		if won.Load() != 1 {
			f.Fatalf("%d creates of one name succeeded", won.Load())
		}
		for _, ino := range inos {
			f.names(root, name, ino)
		}
	}
}

// testDirectoryRace: directories are created, filled and removed concurrently; a removed directory is empty, and the
// links add up.
func testDirectoryRace(f *fixture) {
	together(func(i int) {
		for range 30 {
			a, err := f.s.Mkdir(ctx, root, "d", metadata.New{Mode: dir | 0o700})
			f.expect(err, syscall.EEXIST)
			if err != nil {
				e, err := f.s.Lookup(ctx, root, "d")
				f.expect(err, syscall.ENOENT)
				a.Ino = e.Ino
			}
			if a.Ino == 0 {
				continue
			}
			name := fmt.Sprint("f", i)
			_, err = f.s.Create(ctx, a.Ino, name, metadata.New{Mode: reg | 0o600})
			f.expect(err, syscall.ENOENT)
			if err == nil {
				_, err = f.s.Unlink(ctx, a.Ino, name)
				f.expect(err)
			}
			f.expect(f.s.Rmdir(ctx, root, "d"), syscall.ENOENT, syscall.ENOTEMPTY)
		}
	})
	f.expect(f.s.Rmdir(ctx, root, "d"), syscall.ENOENT)
	f.nlink(root, 2)
	if names := f.listNames(root); len(names) != 0 {
		f.Errorf("entries left: %q", names)
	}
}

// testRenameRace: files move between two directories in both directions concurrently; none is lost or duplicated, and
// no operation hangs.
func testRenameRace(f *fixture) {
	dirs := [2]metadata.Ino{f.mkdir(root, "a").Ino, f.mkdir(root, "b").Ino}
	for i := range racers {
		f.create(dirs[i%2], fmt.Sprint("f", i))
		f.mkdir(dirs[i%2], fmt.Sprint("d", i))
	}
	together(func(i int) {
		for j := range 25 {
			for _, name := range []string{fmt.Sprint("f", i), fmt.Sprint("d", i)} {
				_, err := f.s.Rename(ctx, metadata.Rename{Dir: dirs[(i+j)%2], Name: name, NewDir: dirs[(i+j+1)%2], NewName: name})
				f.expect(err)
			}
			_, err := f.s.Rename(ctx, metadata.Rename{Dir: root, Name: "a", NewDir: root, NewName: "b", Flags: metadata.RenameExchange})
			f.expect(err)
		}
	})
	files, subs := 0, [2]uint32{}
	for k, d := range dirs {
		for _, e := range f.list(d, 100) {
			if e.Mode&fmtM == dir {
				subs[k]++
			} else {
				files++
			}
		}
		f.nlink(d, 2+subs[k])
	}
	if files != racers || subs[0]+subs[1] != racers {
		f.Errorf("%d files, %d directories after the race, want %d each", files, subs[0]+subs[1], racers)
	}
}
