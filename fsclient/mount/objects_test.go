package mount_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// objects mounts the connection below the kernel view of the dataset on mount i.
func (j *job) objects(t *testing.T, i int) string {
	t.Helper()
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	check(t, err)
	defer dev.Close()
	at := t.TempDir()
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other,default_permissions,max_read=1048576", dev.Fd(), j.uid, j.uid)
	check(t, unix.Mount("bivouac", at, "fuse.bivouac", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, data))
	c, err := j.mounts[i].Objects(dev, j.sealed.set.ID, nil)
	if err != nil {
		_ = unix.Unmount(at, unix.MNT_DETACH)
		t.Fatal(err)
	}
	go c.Serve()
	t.Cleanup(func() {
		check(t, unix.Unmount(at, 0))
		<-c.Served()
	})
	// This process uses the mount that it serves; see Mount.Ready.
	fd, err := unix.Open(filepath.Join(at, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	check(t, err)
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) // the request itself is enough
	check(t, unix.Close(fd))
	return at
}

// object returns the path of an object.
func object(ino uint64) string { return fmt.Sprintf("%02x/%016x", uint8(ino), ino) }

// TestObjects: every file of the dataset can be looked up by its number, whichever node has its bytes, and nothing else
// can.
func TestObjects(t *testing.T) {
	j := newJob(t)
	at := j.objects(t, 0)
	for i := range sealedFiles {
		ino := stat(t, j.file(0, i)).Ino
		path := filepath.Join(at, object(ino))
		wantFile(t, path, sealedContent(i))
		if st := stat(t, path); st.Mode != syscall.S_IFREG|0o400 || st.Uid != j.uid || st.Gid != j.uid || st.Ino != ino || st.Size != int64(len(sealedContent(i))) {
			t.Errorf("%s is %+v", path, st)
		}
	}
	ino := stat(t, j.file(0, 0)).Ino
	dir := stat(t, filepath.Join(j.dirs[0], "data", "set", "train")).Ino
	other := uint64(metadata.SealedIno(j.sealed.set.ID+1, 0, 0))
	for _, name := range []string{
		"x", "0", "000", "g0", "f", fmt.Sprintf("%02x/%x", uint8(ino), ino>>4), object(ino) + "0", "00/nothing", fmt.Sprintf("%02x/%016x", uint8(ino+1), ino),
		object(dir), object(other), object(uint64(metadata.RootIno)), object(1),
	} {
		if _, err := os.Lstat(filepath.Join(at, name)); err == nil {
			t.Errorf("%s exists", name)
		} else {
			wantErr(t, "stat of "+name, err, syscall.ENOENT)
		}
	}
}

// TestObjectsDropPages: the pages of files that are read through a kernel view are dropped along with those of the
// mount.
func TestObjectsDropPages(t *testing.T) {
	j := newJob(t)
	at := j.objects(t, 0)
	ino := stat(t, j.file(0, 1)).Ino
	path := filepath.Join(at, object(ino))
	wantFile(t, path, sealedContent(1))
	was := j.mounts[0].Stats().Calls
	wantFile(t, path, sealedContent(1))
	if n := j.calls(0, was)["read"]; n != 0 {
		t.Fatalf("%d reads of cached pages", n)
	}
	j.mounts[0].DropPages([]metadata.Ino{metadata.Ino(ino)})
	was = j.mounts[0].Stats().Calls
	wantFile(t, path, sealedContent(1))
	if n := j.calls(0, was)["read"]; n != 1 {
		t.Errorf("%d reads of dropped pages, want 1", n)
	}
}

// TestUncover: a dataset whose name is invalidated loses its cover, and is read through the mount below.
func TestUncover(t *testing.T) {
	j := newJob(t)
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	check(t, err)
	defer dev.Close()
	set := filepath.Join(j.dirs[0], "data", "set")
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other,default_permissions,max_read=1048576", dev.Fd(), j.uid, j.uid)
	check(t, unix.Mount("bivouac", set, "fuse.bivouac", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, data))
	c, err := j.mounts[0].Cover(dev, metadata.SealedIno(j.sealed.set.ID, metadata.DirPart, 0), nil)
	if err != nil {
		_ = unix.Unmount(set, unix.MNT_DETACH)
		t.Fatal(err)
	}
	go c.Serve()
	j.mounts[0].Uncover("set")
	<-c.Served()
	was := j.mounts[0].Stats().Calls
	wantFile(t, j.file(0, 2), sealedContent(2))
	if n := j.calls(0, was)["open"]; n != 1 {
		t.Errorf("%d opens on the mount that was covered, want 1", n)
	}
}
