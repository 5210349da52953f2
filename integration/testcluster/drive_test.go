package testcluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	driveRoom = 900 << 10 // free bytes left on the full drive
	driveWant = 4 << 20   // bytes that each writer writes there
)

// fullDrive is a node's second store directory, with little room left.
type fullDrive struct {
	dir    string
	filler *os.File
}

func newFullDrive(t *testing.T) *fullDrive {
	t.Helper()
	d := &fullDrive{dir: smallDisk(t, "64m")}
	var err error
	if d.filler, err = os.Create(filepath.Join(d.dir, "filler")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.filler.Close() })
	return d
}

// leave fills the drive until n bytes are free.
func (d *fullDrive) leave(t *testing.T, n int64) {
	t.Helper()
	if err := d.filler.Truncate(0); err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(int(d.filler.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-n); err != nil {
		t.Fatal(err)
	}
}

// has reports whether the object of the file is on the drive.
func (d *fullDrive) has(t *testing.T, path string) (found bool) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("%016x", st.Ino)
	err := filepath.WalkDir(d.dir, func(_ string, e fs.DirEntry, err error) error {
		found = found || e != nil && e.Name() == name
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// empty waits until the objects of removed files are deleted, which happens a moment later, so that later files do
// not find the room they free.
func (d *fullDrive) empty(t *testing.T) {
	t.Helper()
	Eventually(t, "the drive has no objects", func() bool {
		objects, err := filepath.Glob(filepath.Join(d.dir, "objects", "*", "*"))
		return err == nil && len(objects) == 0
	})
}

// file makes a file in dir whose object is, or is not, the only one on the drive: a new object goes to the store
// directory with fewer bytes if a MiB is free there.
func (d *fullDrive) file(t *testing.T, dir string, full bool) string {
	t.Helper()
	d.empty(t)
	if full {
		d.leave(t, 8<<20)
	}
	f, err := os.CreateTemp(dir, "")
	if err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if d.has(t, f.Name()) != full {
		t.Fatalf("%s is on the wrong drive", f.Name())
	}
	d.leave(t, driveRoom)
	return f.Name()
}

// driveWriter writes to a file and records what was acknowledged.
type driveWriter struct {
	f     *os.File
	acked []int // offsets of acknowledged writes
	size  int   // of each write
	told  int   // how many writes were acknowledged when an error was last reported; -1 is never
	errs  []error
}

// bytes returns the data written at off, which differs at every offset.
func (w *driveWriter) bytes(off int) []byte {
	return bytes.Repeat(binary.BigEndian.AppendUint64(nil, uint64(off+1)), w.size/8+1)[:w.size]
}

func (w *driveWriter) hear(err error) {
	if err != nil {
		w.told = len(w.acked)
		w.errs = append(w.errs, err)
	}
}

// write continues after errors if blind is set.
func (w *driveWriter) write(off int, p []byte, appends, blind bool) (goOn bool) {
	var err error
	if appends {
		_, err = w.f.Write(p)
	} else {
		_, err = w.f.WriteAt(p, int64(off))
	}
	if err == nil {
		w.acked = append(w.acked, off)
	}
	w.hear(err)
	return err == nil || blind
}

// TestFullDriveIsTold: one drive of a node is full, and the node has room. Every acknowledged write that was lost is
// reported later to its writer by write, fsync or close, for each way to write, on that node and remotely; other
// processes see the error only from fsync.
func TestFullDriveIsTold(t *testing.T) {
	d := newFullDrive(t)
	c := Start(t, Config{Nodes: 2, Store: func(i int) []string {
		if i == 1 {
			return []string{t.TempDir(), d.dir}
		}
		return []string{t.TempDir()}
	}})
	ms := c.Mount(t)
	if err := os.Mkdir(filepath.Join(ms[1].Scratch, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(filepath.Join(ms[1].Scratch, "d"), "user.bivouac.layout", []byte("local"), 0); err != nil {
		t.Fatal(err)
	}
	d.leave(t, driveRoom)
	if err := os.WriteFile(filepath.Join(ms[1].Scratch, "d", "ballast"), make([]byte, driveWant), 0o644); err != nil {
		t.Fatal(err)
	}
	ways := []struct {
		name  string
		flags int
		size  int
	}{
		{"through the pages", os.O_RDWR, 4096},
		{"small", os.O_WRONLY, 4096},
		{"large", os.O_WRONLY, 1 << 20},
		{"large and unaligned", os.O_RDWR, 1<<20 - 13},
		{"O_DIRECT", os.O_RDWR | syscall.O_DIRECT, 256 << 10},
		{"O_SYNC", os.O_WRONLY | os.O_SYNC, 64 << 10},
		{"O_APPEND", os.O_WRONLY | os.O_APPEND, 10000},
		{"O_APPEND, large", os.O_WRONLY | os.O_APPEND, 1<<20 + 1},
		{"O_APPEND, O_DSYNC", os.O_WRONLY | os.O_APPEND | syscall.O_DSYNC, 10000},
	}
	for i, m := range ms {
		for _, way := range ways {
			for _, blind := range []bool{false, true} { // blind: the writer does not fsync
				t.Run(fmt.Sprintf("node %d/%s/blind %v", i, way.name, blind), func(t *testing.T) {
					w := fillDrive(t, d, ms[1], m, way.flags, way.size, blind)
					w.check(t, ms[1-i], filepath.Base(w.f.Name()), way.flags&os.O_APPEND != 0)
				})
			}
		}
		for _, sync := range []string{"close", "fsync", "msync"} {
			t.Run(fmt.Sprintf("node %d/mapped/%s", i, sync), func(t *testing.T) {
				full := d.file(t, filepath.Join(ms[1].Scratch, "d"), true)
				exe, err := os.Executable()
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(exe, "-test.run=^TestFullDriveMapped$", "-test.v")
				cmd.Env = append(os.Environ(), driveMapped+"="+filepath.Join(m.Scratch, "d", filepath.Base(full)), driveMapped+"_BY="+sync)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
				if err := os.Remove(full); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// fillDrive writes more to a file of node 1 than its drive has room for, through the mount m, beside other writers,
// which must see no error.
func fillDrive(t *testing.T, d *fullDrive, home, m *Mounted, flags, size int, blind bool) *driveWriter {
	t.Helper()
	dir := filepath.Join(home.Scratch, "d")
	good, full := filepath.Base(d.file(t, dir, false)), filepath.Base(d.file(t, dir, true))
	dir = filepath.Join(m.Scratch, "d")
	w, other := &driveWriter{f: reopen(t, filepath.Join(dir, full), flags), size: size, told: -1}, reopen(t, filepath.Join(dir, good), flags)
	beside := reopen(t, filepath.Join(dir, full), os.O_WRONLY)
	appends := flags&os.O_APPEND != 0
	for off := 4096; off < driveWant; off += size {
		p := w.bytes(off)
		if _, err := other.Write(p); err != nil {
			t.Errorf("who writes to another drive is told %v", err)
		}
		if !w.write(off, p, appends, blind) {
			break
		}
	}
	if _, err := beside.WriteAt(make([]byte, 100), 0); err != nil {
		t.Errorf("who writes over what is there is told %v", err)
	}
	if !blind {
		w.hear(w.f.Sync())
	}
	w.hear(w.f.Close())
	if err := errors.Join(beside.Close(), other.Close()); err != nil {
		t.Errorf("others are told %v", err)
	}
	return w
}

func reopen(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // closed before, if the test got so far
	return f
}

// check reads the file through another node, and removes it.
func (w *driveWriter) check(t *testing.T, there *Mounted, name string, appends bool) {
	t.Helper()
	path := filepath.Join(there.Scratch, "d", name)
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lost := 0
	for i, off := range w.acked {
		p := w.bytes(off)
		isThere := len(got) >= off+w.size && bytes.Equal(got[off:][:w.size], p)
		if appends { // after a lost append, at any offset
			isThere = bytes.Contains(got, p)
		}
		if isThere {
			continue
		}
		lost++
		if w.told <= i {
			t.Errorf("write %d of %d at %d was acknowledged, is missing, and no call failed", i, len(w.acked), off)
		}
	}
	if len(w.errs) == 0 {
		t.Errorf("%d bytes found room in %d", driveWant, driveRoom)
	}
	for _, err := range w.errs {
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("told %v, want ENOSPC", err)
		}
	}
	t.Logf("%d acknowledged, %d of them lost, told %d times", len(w.acked), lost, len(w.errs))
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
}

const driveMapped = "BIVOUAC_TEST_FULL_MAP" // the file that the helper maps

// TestFullDriveMapped stores through a mapping, as another process, more than the drive has room for.
func TestFullDriveMapped(t *testing.T) {
	path, by := os.Getenv(driveMapped), os.Getenv(driveMapped+"_BY")
	if path == "" {
		t.Skip("it helps another test")
	}
	f := reopen(t, path, os.O_RDWR)
	if err := f.Truncate(driveWant); err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, driveWant, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	copy(m, bytes.Repeat([]byte{7}, driveWant))
	told := map[string]error{}
	if by == "msync" {
		told["msync"] = unix.Msync(m, unix.MS_SYNC)
	}
	if by == "fsync" {
		told["fsync"] = f.Sync()
	}
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	told["close"] = f.Close()
	if !errors.Is(told[by], syscall.ENOSPC) {
		t.Errorf("told %v, want ENOSPC by %s", told, strconv.Quote(by))
	}
}
