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

// usedIn looks for who uses a directory.
func usedIn(t *testing.T, dir string) *directories {
	t.Helper()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_INO, &st); err != nil {
		t.Fatal(err)
	}
	return &directories{dev: fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), root: metadata.Ino(st.Ino), proc: procfs{}, now: time.Now}
}

// TestUsed: a directory is in use by who has it open and by who works in it, and a
// file in it uses it not.
func TestUsed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to look at other processes")
	}
	dir := t.TempDir()
	d := usedIn(t, dir)
	wantUse(t, d, "nobody's directory", unused)
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	wantUse(t, d, "that of an open file", unused)
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	wantUse(t, d, "an open directory", busy)
	_ = open.Close() // read only
	leave := worker(t, dir)
	wantUse(t, d, "a working directory", busy)
	leave()
	wantUse(t, d, "what was left", unused)
}

// worker is a process that works in a directory until it leaves.
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

// TestUsedRested: who has been in a directory for long rests, and so does whom he starts
// there; not who has come meanwhile, and nobody who has a directory open. In
// the dataset's own directory nobody rests if what is below is deep.
func TestUsedRested(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to look at other processes")
	}
	dir := t.TempDir()
	d := usedIn(t, dir)
	at := time.Now()
	d.now = func() time.Time { return at }
	leave := worker(t, dir)
	wantUse(t, d, "who has just come", busy)
	at = at.Add(restTime - 1)
	wantUse(t, d, "who has come a little before", busy)
	at = at.Add(1)
	wantUse(t, d, "who has come long before", rested)
	worker(t, dir)
	wantUse(t, d, "who was started there", rested)
	d.deep = true
	wantUse(t, d, "who may walk deep and back", busy)
	d.deep = false
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	wantUse(t, d, "who has it open besides", busy)
	_ = open.Close() // read only
	leave()
	wantUse(t, d, "who is left and came late", busy)
	at = at.Add(restTime)
	wantUse(t, d, "who is left", rested)
}

// TestUsedReader: who opens and closes files all the time, in many threads, uses no
// directory.
func TestUsedReader(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to look at other processes")
	}
	dir := t.TempDir()
	d := usedIn(t, dir)
	d.proc = restless{}
	wantUse(t, d, "a reader", unused)
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	wantUse(t, d, "who has a directory open besides", busy)
}

// restless is a /proc in which every process has other descriptors whenever it is looked
// at.
type restless struct{ procfs }

func (r restless) list(dir string) ([]string, error) {
	names, err := r.procfs.list(dir)
	if filepath.Base(dir) == "fdinfo" {
		names = append(names, fmt.Sprint(1<<20+time.Now().UnixNano()))
	}
	return names, err
}

// counted is a /proc that counts what is asked of it.
type counted struct {
	proc
	lists, reads, links map[string]int // of what, whosever it is
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

// TestUsedLittle: /proc is listed once for a look. Who has his working directory in the
// dataset is found before any descriptor is looked at, and who had a directory open the
// last time is looked at before all others.
func TestUsedLittle(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to look at other processes")
	}
	dir := t.TempDir()
	d := usedIn(t, dir)
	look := func(what string) counted {
		t.Helper()
		c := count(procfs{})
		d.proc = c
		wantUse(t, d, what, busy)
		if n := c.lists["proc"]; n != 1 {
			t.Errorf("%s: /proc is listed %d times, want once", what, n)
		}
		return c
	}
	leave := worker(t, dir)
	if c := look("a working directory"); c.lists["fdinfo"] != 0 || c.reads["fdinfo"] != 0 {
		t.Errorf("descriptors are looked at: %v, %v", c.lists, c.reads)
	}
	leave()
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	look("an open directory")
	if c := look("an open directory once more"); c.lists["fdinfo"] != 1 {
		t.Errorf("the descriptors of %d processes are looked at, want those of the last user", c.lists["fdinfo"])
	}
}

// TestUsedOnce: of descriptors that are no files, or of files that are written, it is not
// asked where they are, of the latter not even what they are called, and of
// files once, though others come and go.
func TestUsedOnce(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to look at other processes")
	}
	d := usedIn(t, t.TempDir())
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
	if n := c.lists["fdinfo"]; n != maxLooks+1 {
		t.Errorf("the descriptors are listed %d times, want %d", n, maxLooks+1)
	}
	if n := c.reads["fdinfo"]; n < 40 || n > 120 {
		t.Errorf("%d descriptors are looked at, want some 80: each file that is only read, once, and those that come and go", n)
	}
	if n := c.links["fd"]; n < 80*maxLooks || n > 120*maxLooks {
		t.Errorf("%d descriptors are asked for their names, want some %d: those that are only read, and ends of pipes", n, 80*maxLooks)
	}
}

// TestUsedMany: very many descriptors are looked at twice, however they change.
func TestUsedMany(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to look at other processes")
	}
	d := usedIn(t, t.TempDir())
	c := count(crowded{})
	d.proc = c
	used, err := d.openIn(fmt.Sprint("/proc/", os.Getpid()), nil)
	if used || err != nil {
		t.Fatal(used, err)
	}
	if n := c.lists["fdinfo"]; n != 3 {
		t.Errorf("the descriptors are listed %d times, want 3: before two looks, and behind them", n)
	}
}

// crowded is a restless /proc in which every process has had very many descriptors.
type crowded struct{ restless }

func (c crowded) list(dir string) ([]string, error) {
	names, err := c.restless.list(dir)
	for i := range maxAsked {
		names = append(names, fmt.Sprint(1<<30+i))
	}
	return names, err
}

func wantUse(t *testing.T, d *directories, what string, want use) {
	t.Helper()
	if u, err := d.look(func() bool { return false }); err != nil || u != want {
		t.Errorf("%s: use %v, %v, want %v", what, u, err, want)
	}
}

// TestDirectories: those of the dataset are told from its files, from others' and from
// what the kernel calls the root.
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
