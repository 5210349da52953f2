package pitch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/mounts"
)

const (
	killTime    = 5 * time.Second
	unmountTime = 10 * time.Second
	// wipeTime bounds the removal of files in an epilog: enough for some ten million files.
	wipeTime = 2 * time.Minute
)

// teardown removes everything of p's job on this node, except its keeper, and returns what it could not remove. It
// needs only names and pid files, and can be repeated.
func teardown(ctx context.Context, p place) []string {
	var left []string
	bad := func(err error) {
		if err != nil {
			left = append(left, oneLine(err.Error()))
		}
	}
	bad(readProcess(p.daemonPid()).end(ctx, killTime))
	bad(unmount(ctx, p.mount(), unmountTime))
	if at, err := mounts.At(p.mount()); err == nil && len(at) == 0 {
		bad(removeMountpoint(p.mount()))
	}
	keepSets(ctx, p)
	for _, err := range wipeAll(ctx, p.allStores()) {
		bad(err)
	}
	leaveCgroup(p)
	bad(p.removeTextfile())
	if len(left) > 0 {
		return left // keep the run directory, so that the job is found again
	}
	bad(wipe(ctx, p.run()))
	return append(left, leftovers(p)...)
}

func removeMountpoint(path string) error {
	err := unix.Rmdir(path)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}

// wipeAll removes directories in parallel.
func wipeAll(ctx context.Context, dirs []string) []error {
	errs := make([]error, len(dirs))
	var wg sync.WaitGroup
	for i, d := range dirs {
		wg.Go(func() {
			errs[i] = wipe(ctx, d)
		})
	}
	wg.Wait()
	return errs
}

// leftovers returns the remains of a job, except its keeper and log.
func leftovers(p place) []string {
	var left []string
	if under, err := mounts.Under(p.mount()); err != nil || len(under) > 0 {
		left = append(left, "mount "+p.mount())
	} else if exists(p.mount()) {
		left = append(left, "directory "+p.mount())
	}
	dirs := p.allStores() // not accessed: the user can have mounted there
	if exists(p.run()) {
		dirs = append(dirs, p.run())
	}
	for _, d := range dirs {
		left = append(left, "directory "+d)
	}
	return left
}

// absent reports whether the job has no remains on this node.
func absent(p place) bool { return len(leftovers(p)) == 0 }

// reap tears down every job on this node without a live keeper, and the stores of earlier starts of all other jobs. The
// caller holds the lock, so that no job is being set up. It returns the jobs that it removed, and what it could not
// remove.
func reap(ctx context.Context, site Site) (gone, left []string) {
	for _, job := range jobsOn(site) {
		p := place{site, job}
		if readProcess(p.keeperPid()).alive() {
			for _, err := range wipeAll(ctx, earlierStores(p)) {
				if err != nil {
					left = append(left, oneLine(err.Error()))
				}
			}
			continue
		}
		if l := teardown(ctx, p); len(l) > 0 {
			left = append(left, l...)
			continue
		}
		gone = append(gone, job)
	}
	return gone, left
}

// earlierStores returns the store directories of all starts but the live one.
func earlierStores(p place) []string {
	r, err := readRecord(p.recordFile())
	if err != nil {
		return nil
	}
	now := append(p.stores(r.Job.Restart), r.Job.Dirs.Store...)
	return slices.DeleteFunc(p.allStores(), func(dir string) bool { return slices.Contains(now, dir) })
}

// jobsOn returns the ids of all jobs that left a trace on this node.
func jobsOn(site Site) []string {
	jobs := map[string]bool{}
	for _, dir := range []string{site.Run, site.Mount} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // missing, so nothing in it
		}
		for _, e := range entries {
			if jobName.MatchString(e.Name()) {
				jobs[e.Name()] = true
			}
		}
	}
	for _, s := range site.Store {
		entries, err := os.ReadDir(s)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if storeName.MatchString(e.Name()) {
				id, _, _ := strings.Cut(e.Name(), ".")
				jobs[id] = true
			}
		}
	}
	return sortedKeys(jobs)
}

// lockPath returns the file that prologs lock. Only root can open it: a user who could read it could hold the lock
// indefinitely.
func lockPath(run string) string { return filepath.Join(run, ".lock") }

// lockRun serializes the prologs of this node.
func lockRun(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.OpenFile(lockPath(dir), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = poll(ctx, func() bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil })
	if err != nil {
		_ = f.Close() // nothing is written
		return nil, fmt.Errorf("another prolog holds the lock %s: %w", f.Name(), err)
	}
	return func() { _ = f.Close() }, nil // nothing is written
}
