package mount_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata"
)

// bothWays runs a test of the dataset without a cover and with one.
func bothWays(t *testing.T, test func(t *testing.T, j *job)) {
	t.Helper()
	t.Run("plain", func(t *testing.T) { test(t, newJob(t)) })
	t.Run("covered", func(t *testing.T) { test(t, startJob(t, &job{backings: -1, covered: true})) })
}

// cover mounts a cover of the dataset on mount i.
func (j *job) cover(t *testing.T, i int) {
	t.Helper()
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	check(t, err)
	defer dev.Close()
	set := filepath.Join(j.dirs[i], "data", "set")
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other,default_permissions,max_read=1048576", dev.Fd(), j.uid, j.uid)
	check(t, unix.Mount("bivouac", set, "fuse.bivouac", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, data))
	var next mount.Prefetch
	if i == 0 {
		next = j.next
	}
	c, err := j.mounts[i].Cover(dev, metadata.SealedIno(j.sealed.set.ID, metadata.DirPart, 0), next)
	if err != nil {
		_ = unix.Unmount(set, unix.MNT_DETACH)
		t.Fatal(err)
	}
	go c.Serve()
	t.Cleanup(func() {
		check(t, unix.Unmount(set, 0))
		<-c.Served()
	})
	// This process uses the cover that it serves; see Mount.Ready.
	fd, err := unix.Open(filepath.Join(set, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	check(t, err)
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) // the request itself is enough
	check(t, unix.Close(fd))
}

// calls returns the requests of mount i since was.
func (j *job) calls(i int, was map[string]int64) map[string]int64 {
	now := j.mounts[i].Stats().Calls
	for op, n := range was {
		if now[op] -= n; now[op] == 0 {
			delete(now, op)
		}
	}
	return now
}

// TestCoverCounts: the first open, read and close of a file of a cover cost one lookup and one read; later ones, and
// listings of its directory, cost no request.
func TestCoverCounts(t *testing.T) {
	j := startJob(t, &job{backings: -1, covered: true})
	pass := func() {
		for i := range sealedFiles {
			wantFile(t, j.file(0, i), sealedContent(i))
		}
		es, err := os.ReadDir(filepath.Join(j.dirs[0], "data", "set", "train"))
		if err != nil || len(es) != sealedFiles {
			t.Fatalf("ReadDir = %d entries, %v", len(es), err)
		}
	}
	was := j.mounts[0].Stats().Calls
	pass()
	first := j.calls(0, was)
	if n := first["lookup"]; n < sealedFiles || n > sealedFiles+10 { // and the directories
		t.Errorf("%d lookups of %d files", n, sealedFiles)
	}
	if first["read"] != sealedFiles || first["open"] > 1 || first["flush"] > 1 || first["opendir"] > 1 || first["release"] != 0 || first["releasedir"] != 0 {
		t.Errorf("the first pass over %d files costs %v", sealedFiles, first)
	}
	was = j.mounts[0].Stats().Calls
	pass()
	second := j.calls(0, was)
	delete(second, "lookup")  // of the dataset's name, which can vanish
	delete(second, "getattr") // of data/, which changes
	if len(second) != 0 {
		t.Errorf("the second pass costs %v", second)
	}
}

// TestStatDataset: df in a dataset shows its size and no free space.
func TestStatDataset(t *testing.T) {
	bothWays(t, func(t *testing.T, j *job) {
		for _, path := range []string{filepath.Join(j.dirs[0], "data", "set"), j.file(0, 0)} {
			var st syscall.Statfs_t
			check(t, syscall.Statfs(path, &st))
			if st.Blocks*uint64(st.Bsize) != uint64(j.sealed.set.Bytes) || st.Bfree != 0 || st.Bavail != 0 ||
				st.Files != sealedFiles+3 || st.Ffree != 0 || st.Namelen != metadata.MaxName {
				t.Errorf("statfs of %s = %+v", path, st)
			}
		}
	})
}

// TestDropPages: dropped pages are read again.
func TestDropPages(t *testing.T) {
	bothWays(t, func(t *testing.T, j *job) {
		wantFile(t, j.file(0, 1), sealedContent(1))
		was := j.mounts[0].Stats().Calls
		wantFile(t, j.file(0, 1), sealedContent(1))
		if n := j.calls(0, was)["read"]; n != 0 {
			t.Fatalf("%d reads of cached pages", n)
		}
		j.mounts[0].DropPages([]metadata.Ino{metadata.Ino(stat(t, j.file(0, 1)).Ino)})
		was = j.mounts[0].Stats().Calls
		wantFile(t, j.file(0, 1), sealedContent(1))
		if n := j.calls(0, was)["read"]; n != 1 {
			t.Errorf("%d reads of dropped pages, want 1", n)
		}
	})
}

// TestCoverRoot: the root of a cover has the inode number of its directory, on a separate device.
func TestCoverRoot(t *testing.T) {
	j := startJob(t, &job{backings: -1, covered: true})
	set := filepath.Join(j.dirs[0], "data", "set")
	st := stat(t, set)
	if want := uint64(metadata.SealedIno(j.sealed.set.ID, metadata.DirPart, 0)); st.Ino != want || st.Mode != syscall.S_IFDIR|0o755 {
		t.Errorf("the root is inode %d of mode %o, want %d", st.Ino, st.Mode, want)
	}
	if st.Dev == stat(t, filepath.Join(j.dirs[0], "data")).Dev {
		t.Error("the dataset is on the device of the mount below it")
	}
	es, err := os.ReadDir(set)
	check(t, err)
	var names []string
	for _, e := range es {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, []string{"big", "link", "train"}) {
		t.Errorf("the dataset has %q", names)
	}
	node := make([]byte, 16)
	for i := range 3 {
		n, err := unix.Getxattr(j.file(0, i), "user.bivouac.node", node)
		if err != nil || string(node[:n]) != fmt.Sprintf("n%d", i) {
			t.Errorf("file %d is on %q, %v", i, node[:n], err)
		}
	}
}

// TestCoverSeek: SEEK_DATA and SEEK_HOLE, which the kernel implements here.
func TestCoverSeek(t *testing.T) {
	j := startJob(t, &job{backings: -1, covered: true})
	f, err := os.Open(j.file(0, 1))
	check(t, err)
	defer f.Close()
	size := int64(len(sealedContent(1)))
	for _, c := range []struct {
		whence int
		want   int64
	}{{unix.SEEK_DATA, 10}, {unix.SEEK_HOLE, size}} {
		if got, err := unix.Seek(int(f.Fd()), 10, c.whence); err != nil || got != c.want {
			t.Errorf("lseek 10, %d = %d, %v, want %d", c.whence, got, err, c.want)
		}
	}
	check(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
}

// TestCoverDirect: concurrent reads that bypass the page cache.
func TestCoverDirect(t *testing.T) {
	j := startJob(t, &job{backings: -1, covered: true})
	want := pattern(sealedBig)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			fd, err := unix.Open(filepath.Join(j.dirs[0], "data", "set", "big"), unix.O_RDONLY|unix.O_DIRECT, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(fd)
			p := make([]byte, sealedBig)
			n := 0
			for n < len(p) {
				k, err := unix.Pread(fd, p[n:], int64(n))
				if err != nil || k == 0 {
					t.Errorf("pread at %d = %d, %v", n, k, err)
					return
				}
				n += k
			}
			if !bytes.Equal(p, want) {
				t.Error("O_DIRECT reads other bytes")
			}
		})
	}
	wg.Wait()
}

// TestCoverGone: after a cover is detached, the mount below serves the dataset.
func TestCoverGone(t *testing.T) {
	j := newJob(t)
	t.Run("covered", func(t *testing.T) {
		j.cover(t, 0)
		wantFile(t, j.file(0, 1), sealedContent(1))
	})
	was := j.mounts[0].Stats().Calls
	wantFile(t, j.file(0, 2), sealedContent(2))
	if n := j.calls(0, was)["open"]; n != 1 {
		t.Errorf("%d opens on the mount that was covered, want 1", n)
	}
}
