package mounts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// directoriesOf finds the users of a directory.
func directoriesOf(t *testing.T, dir string) *directories {
	t.Helper()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_INO, &st); err != nil {
		t.Fatal(err)
	}
	return &directories{dev: fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), root: metadata.Ino(st.Ino), proc: procfs{}}
}

// TestBusy: a dataset is busy while a process has its directory open, or, if it is deep,
// works in it; open files do not count.
func TestBusy(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	d := directoriesOf(t, dir)
	wantBusy(t, d, "an unused directory", false)
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	wantBusy(t, d, "an open file", false)
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	wantBusy(t, d, "an open directory", true)
	_ = open.Close() // read only
	leave := worker(t, dir)
	wantBusy(t, d, "a working directory", false)
	d.deep = true
	wantBusy(t, d, "a working directory of a deep dataset", true)
	leave()
	wantBusy(t, d, "a directory that the process has left", false)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to look at other processes")
	}
}

// worker is a process that works in a directory until leave.
func worker(t *testing.T, dir string) (leave func()) {
	t.Helper()
	user := exec.Command("sleep", "1000")
	user.Dir = dir
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	leave = sync.OnceFunc(func() {
		_ = user.Process.Kill()
		_ = user.Wait() // it was killed
	})
	t.Cleanup(leave)
	return leave
}

// TestBusyReader: a process that keeps opening and closing files, in many threads, uses no
// directory.
func TestBusyReader(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	d := directoriesOf(t, dir)
	d.proc = restless{}
	wantBusy(t, d, "a reader of files", false)
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	wantBusy(t, d, "a reader that has a directory open, too", true)
}

// restless is a /proc in which every list of descriptors differs from the last one.
type restless struct{ procfs }

func (r restless) list(dir string) ([]string, error) {
	names, err := r.procfs.list(dir)
	if filepath.Base(dir) == "fdinfo" {
		names = append(names, fmt.Sprint(1<<20+time.Now().UnixNano()))
	}
	return names, err
}

// counted is a /proc that counts the accesses to it.
type counted struct {
	proc
	lists, reads, links map[string]int // by the last or last but one part of the path
}

func count(p proc) counted {
	return counted{p, make(map[string]int), make(map[string]int), make(map[string]int)}
}

func (c counted) list(dir string) ([]string, error) {
	c.lists[filepath.Base(dir)]++
	return c.proc.list(dir)
}

func (c counted) link(path string) (string, error) {
	c.links[filepath.Base(filepath.Dir(path))]++
	return c.proc.link(path)
}

func (c counted) read(file string) ([]byte, error) {
	c.reads[filepath.Base(filepath.Dir(file))]++
	return c.proc.read(file)
}

// TestBusyOrder: a look lists /proc once, and begins with the process that the last look found.
func TestBusyOrder(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	d := directoriesOf(t, dir)
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	look := func() counted {
		t.Helper()
		c := count(procfs{})
		d.proc = c
		wantBusy(t, d, "an open directory", true)
		if n := c.lists["proc"]; n != 1 {
			t.Errorf("/proc was listed %d times, want once", n)
		}
		return c
	}
	look()
	if c := look(); c.lists["fdinfo"] != 1 {
		t.Errorf("the second look listed descriptors of %d processes, want those of the last user only", c.lists["fdinfo"])
	}
}

// TestBusyCost: a look asks where a descriptor is only if it is of a file that is read, and
// only once, however other descriptors come and go. It does not even ask for the name of a
// descriptor that is written.
func TestBusyCost(t *testing.T) {
	needRoot(t)
	d := directoriesOf(t, t.TempDir())
	for range 40 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		written, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer written.Close()
	}
	c := count(restless{})
	d.proc = c
	p := fmt.Sprint("/proc/", os.Getpid())
	used, err := d.openIn(p, nil)
	if used || err != nil {
		t.Fatal(used, err)
	}
	if n := c.lists["fdinfo"]; n != maxRelists+1 {
		t.Errorf("descriptors were listed %d times, want %d", n, maxRelists+1)
	}
	if n := c.reads["fdinfo"]; n < 40 || n > 120 {
		t.Errorf("%d descriptors were asked for their place, want some 80: each file that is read, once, and those that come and go", n)
	}
	if n := c.links["fd"]; n < 80*maxRelists || n > 120*maxRelists {
		t.Errorf("%d descriptors were asked for their names, want some %d: files that are read, and ends of pipes", n, 80*maxRelists)
	}
}

// TestBusyCostBound: a process with thousands of descriptors is listed twice, however they change.
func TestBusyCostBound(t *testing.T) {
	needRoot(t)
	d := directoriesOf(t, t.TempDir())
	c := count(crowded{})
	d.proc = c
	used, err := d.openIn(fmt.Sprint("/proc/", os.Getpid()), nil)
	if used || err != nil {
		t.Fatal(used, err)
	}
	if n := c.lists["fdinfo"]; n != 3 {
		t.Errorf("descriptors were listed %d times, want 3: before two passes, and after them", n)
	}
}

// crowded is a restless /proc in which every process has thousands of descriptors.
type crowded struct{ restless }

func (c crowded) list(dir string) ([]string, error) {
	names, err := c.restless.list(dir)
	for i := range maxAsked {
		names = append(names, fmt.Sprint(1<<30+i))
	}
	return names, err
}

func wantBusy(t *testing.T, d *directories, what string, want bool) {
	t.Helper()
	if got := d.busy(never); got != want {
		t.Errorf("%s: busy %v, want %v", what, got, want)
	}
}

// TestDirectories: have distinguishes the directories of the dataset from its files and from
// those of others, and knows the kernel's name of the root.
func TestDirectories(t *testing.T) {
	d := directories{dataset: 3, root: 1}
	for ino, want := range map[metadata.Ino]bool{
		1: true, metadata.SealedIno(3, metadata.DirPart, 0): true, metadata.SealedIno(3, metadata.DirPart, 9): true,
		metadata.SealedIno(3, 0, 9): false, metadata.SealedIno(4, metadata.DirPart, 0): false, metadata.RootIno: false, 0: false,
	} {
		if got := d.have(ino); got != want {
			t.Errorf("inode %v: %v, want %v", ino, got, want)
		}
	}
}
