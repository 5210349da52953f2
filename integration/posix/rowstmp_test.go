package posix

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/integration/testcluster"
)

// openTmp makes a file without a name and writes to it.
func openTmp(t *testing.T, dir string, flags int, content []byte) *os.File {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC|flags, 0o640)
	check(t, err)
	f := os.NewFile(uintptr(fd), dir+"/(tmp)")
	_, err = f.Write(content)
	check(t, err)
	return f
}

// tmpfile: a file without a name is linked, whole, or is removed with its last descriptor.
func tmpfile(t *testing.T, c *camp, here, there string) {
	for i := range 8 { // directories of all homes
		dir := fmt.Sprint("/d", i)
		check(t, os.Mkdir(here+dir, 0o755))
		content := pattern(1<<20 + i)
		f := openTmp(t, here+"/d0", 0, content)
		if st := fstat(t, f); st.Nlink != 0 || st.Size != int64(len(content)) || st.Mode != syscall.S_IFREG|0o640 {
			t.Errorf("a file without a name: %+v", st)
		}
		if es, err := os.ReadDir(there + "/d0"); err != nil || len(es) != 0 {
			t.Errorf("names in its directory: %v, %v", es, err)
		}
		var err error
		if i%2 == 0 {
			err = unix.Linkat(unix.AT_FDCWD, fmt.Sprint("/proc/self/fd/", f.Fd()), unix.AT_FDCWD, here+dir+"/f", unix.AT_SYMLINK_FOLLOW)
		} else {
			err = unix.Linkat(int(f.Fd()), "", unix.AT_FDCWD, here+dir+"/f", unix.AT_EMPTY_PATH)
		}
		check(t, err)
		wantFile(t, there+dir+"/f", content)
		if st := fstat(t, f); st.Nlink != 1 {
			t.Errorf("links after linkat = %d", st.Nlink)
		}
		check(t, f.Close())
		wantErr(t, "linkat over a name", unix.Linkat(unix.AT_FDCWD, here+dir+"/f", unix.AT_FDCWD, there+dir+"/f", 0), syscall.EEXIST)
		wantFile(t, here+dir+"/f", content)
		check(t, os.Remove(there+dir+"/f"))
	}
	used := c.used(t)
	f := openTmp(t, here, 0, pattern(3<<20))
	check(t, f.Sync())
	if now := c.used(t); now < used+3<<20 {
		t.Errorf("%d bytes are in use with 3 MiB in a file without a name, %d before", now, used)
	}
	check(t, f.Close())
	testcluster.Eventually(t, "its space comes back", func() bool { return c.used(t) <= used })
	f = openTmp(t, here, unix.O_EXCL, nil)
	wantErr(t, "linkat after O_EXCL", unix.Linkat(int(f.Fd()), "", unix.AT_FDCWD, here+"/no", unix.AT_EMPTY_PATH), syscall.ENOENT)
	check(t, f.Close())
	gone, err := os.Create(here + "/gone")
	check(t, err)
	check(t, os.Remove(here+"/gone"))
	wantErr(t, "linkat of an unlinked file", unix.Linkat(int(gone.Fd()), "", unix.AT_FDCWD, here+"/no", unix.AT_EMPTY_PATH), syscall.ENOENT)
	check(t, gone.Close())
}
