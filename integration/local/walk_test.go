package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deepTree makes a source of small files in directories deeper than the descriptors that find and du keep open, so
// that they go back up by "..".
func (c *camp) deepTree(name string) string {
	c.t.Helper()
	src := c.path(name)
	for _, branch := range []string{"a", "b", "c"} {
		dir := filepath.Join(src, branch)
		for depth := range 12 {
			dir = mkdir(c.t, filepath.Join(dir, fmt.Sprint(depth)))
			write(c.t, filepath.Join(dir, "f"), smallFile(depth))
		}
	}
	return src
}

// walkers repeatedly walk trees.
type walkers struct {
	t    *testing.T
	once sync.Once // closes stop
	stop chan struct{}
	wg   sync.WaitGroup
	all  []*walker
}

type walker struct {
	what  string
	walk  func() error
	walks atomic.Int64
	fails atomic.Int64
}

// walking starts walkers of these kinds in a directory.
func walking(t *testing.T, dir string, kinds ...string) *walkers {
	t.Helper()
	walks := map[string]func() error{
		"find":  func() error { return program("find", dir, "-type", "f") },
		"du":    func() error { return program("du", "-a", dir) },
		"climb": func() error { return climb(dir) },
	}
	w := &walkers{t: t, stop: make(chan struct{})}
	for _, kind := range kinds {
		w.all = append(w.all, &walker{what: kind, walk: walks[kind]})
	}
	for _, x := range w.all {
		w.wg.Go(func() { w.run(x) })
	}
	t.Cleanup(w.end)
	return w
}

func (w *walkers) run(x *walker) {
	for {
		select {
		case <-w.stop:
			return
		default:
		}
		err := x.walk()
		x.walks.Add(1)
		if err != nil && x.fails.Add(1) < 4 {
			w.t.Errorf("walk %d of %s: %v", x.walks.Load(), x.what, err)
		}
	}
}

func (w *walkers) end() {
	w.once.Do(func() { close(w.stop) })
	w.wg.Wait()
}

// more waits until each walker has walked n more times.
func (w *walkers) more(n int64) {
	w.t.Helper()
	for _, x := range w.all {
		want := x.walks.Load() + n
		eventually(w.t, x.what+" walks on", func() bool { return x.walks.Load() >= want })
	}
}

// program runs a program that must print no error.
func program(args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = new(strings.Builder)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %.300s", err, cmd.Stderr)
	}
	return nil
}

// climb walks a tree, and goes up by "..", which must lead to the parent.
func climb(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	tick := time.NewTicker(2 * time.Millisecond) // slows the walk down
	defer tick.Stop()
	fd, err = climbIn(fd, tick)
	return errors.Join(err, unix.Close(fd))
}

// climbIn walks the directories below fd, which it closes, and returns a new descriptor for it.
func climbIn(fd int, tick *time.Ticker) (int, error) {
	names, err := directories(fd)
	if err != nil {
		return fd, err
	}
	for _, name := range names {
		<-tick.C
		var here, back unix.Stat_t
		if err := unix.Fstat(fd, &here); err != nil {
			return fd, err
		}
		sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return fd, fmt.Errorf("%s: %w", name, err)
		}
		_ = unix.Close(fd) // read only
		if fd, err = climbIn(sub, tick); err != nil {
			return fd, fmt.Errorf("%s: %w", name, err)
		}
		up, err := unix.Openat(fd, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(fd) // read only
		if fd = up; err == nil {
			err = unix.Fstat(fd, &back)
		}
		if err != nil {
			return fd, fmt.Errorf("above %s: %w", name, err)
		}
		if back.Dev != here.Dev || back.Ino != here.Ino {
			return fd, fmt.Errorf("above %s is another directory, %x:%d, than before, %x:%d", name, back.Dev, back.Ino, here.Dev, here.Ino)
		}
	}
	return fd, nil
}

// directories returns the names of the subdirectories of a directory.
func directories(fd int) ([]string, error) {
	own, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), ".")
	defer f.Close()
	entries, err := f.ReadDir(-1)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// TestViewWalked: programs walk the trees all the time, also from above a dataset before it exists, and always return
// to the directory they left: each dataset has its view before it is visible.
func TestViewWalked(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needViews(t)
	c := pitch(t, "2")
	all := []*walkers{walking(t, c.node("0", "data"), "find", "du", "climb"), walking(t, c.node("1", "data"), "find")}
	for i := range 4 {
		name := fmt.Sprint("deep", i)
		c.ok("stage-in", c.deepTree(name), "--dir", c.dir)
		if n := c.views(name); n != 2 {
			t.Errorf("%d views of %s when it is ready, want 2", n, name)
		}
		for _, w := range all {
			w.more(4)
		}
	}
	for _, w := range all {
		w.end()
	}
	c.struck()
}

// TestNeverUncovered: programs that poll for a dataset by name find, from the first moment, its final mount.
func TestNeverUncovered(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needViews(t)
	for _, view := range []string{"auto", "off"} {
		c := pitch(t, "2", "--kernel-view", view)
		below, found := deviceOf(t, c.node("0", "data")), make(chan uint64)
		for i := range 8 { // lookups of the name are always in flight, on both nodes
			go func() {
				at, end := c.node(fmt.Sprint(i%2), "data", "set", "."), time.Now().Add(patience)
				var st unix.Stat_t
				for unix.Stat(at, &st) != nil && time.Now().Before(end) {
					runtime.Gosched()
				}
				found <- st.Dev
			}()
		}
		c.ok("stage-in", c.smallTree("set", 20, 3000), "--dir", c.dir)
		var devs [8]uint64
		for i := range devs {
			devs[i] = <-found
		}
		for i, dev := range devs {
			if dev == 0 || dev == below || dev != deviceOf(t, c.node("0", "data", "set")) && dev != deviceOf(t, c.node("1", "data", "set")) {
				t.Errorf("with views %s program %d has found device %x, not that of the mount over the dataset", view, i, dev)
			}
		}
		c.wantTree("set", 20, 3000)
		c.struck()
	}
}

func deviceOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Dev
}

// filling stages a dataset in slowly, and returns when its view can be used.
func filling(t *testing.T) *camp {
	t.Helper()
	needRoot(t)
	needViews(t)
	c := pitch(t, "2", "--rate", "1M")
	c.ok("stage-in", c.smallTree("filled", 60, 99_999), "--dir", c.dir, "--background")
	c.awaitViews("filled", "2")
	return c
}

// TestViewFills: through a view, a file is fetched when it is read, and the kernel alone reads it once it is local:
// no file is opened twice, and none is short.
func TestViewFills(t *testing.T) {
	t.Parallel()
	c := filling(t)
	c.wantSome("filled", 0, 20)
	c.ok("wait", "--dir", c.dir)
	eventually(t, "the kernel finds all files", func() bool { return c.linked() == 60 })
	reads := func(n string) float64 { return c.metric(n, `bivouac_fuse_request_seconds_count{op="read"}`) }
	was := reads("0") + reads("1")
	c.wantSome("filled", 20, 60)
	if n := reads("0") + reads("1") - was; n < 40 || n > 40*1.5 { // each file is remote on one of the two nodes
		t.Errorf("40 files that are read on both nodes cost %v reads, want 40", n)
	}
	c.wantTree("filled", 60, 99_999)
	c.ok("remove", "filled", "--dir", c.dir)
	eventually(t, "the files and their links are gone", func() bool { return c.linked() == 0 })
	c.struck()
}

// linked returns the number of objects, on all nodes, that kernel views can find.
func (c *camp) linked() int {
	c.t.Helper()
	links, err := filepath.Glob(filepath.Join(c.dir, ".bivouac/*/store/whole/*/*"))
	if err != nil {
		c.t.Fatal(err)
	}
	return len(links)
}

// wantSome reads files of wantTree on both nodes.
func (c *camp) wantSome(name string, from, to int) {
	c.t.Helper()
	for i := from; i < to; i++ {
		for _, n := range []string{"0", "1"} {
			f := fmt.Sprintf("%03d", i)
			wantFile(c.t, c.node(n, "data", name, f), strings.Repeat(f, 99_999/3))
		}
	}
}

// TestViewWorkedIn: programs that work in a dataset during its stage-in, or have a directory or file of it open, can
// continue there, and do not block the end of the job.
func TestViewWorkedIn(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		c := filling(t)
		const want = 99_999
		at := c.node("0", "data", "filled")
		f, err := os.Open(filepath.Join(at, "007"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		user := exec.Command("sh", "-c", "read go; /bin/pwd -P; find . -type f | wc -l; du -a . >/dev/null; head -c 3 ../filled/008; read go")
		user.Dir = at
		var said strings.Builder
		user.Stdout, user.Stderr = &said, &said
		in, err := user.StdinPipe()
		if err == nil {
			err = user.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		c.ok("wait", "--dir", c.dir)
		b := make([]byte, want)
		if _, err := f.ReadAt(b, 0); err != nil || string(b) != strings.Repeat("007", want/3) {
			t.Errorf("an open file has other bytes than before, or none: %v", err)
		}
		if kill {
			c.killAll()
		} else if _, err := in.Write([]byte("go\n")); err != nil {
			t.Error(err)
		} else {
			eventually(t, "the script has read", func() bool { return strings.HasSuffix(said.String(), "008") })
			if want := at + "\n60\n008"; said.String() != want {
				t.Errorf("a script says %q, want %q", said.String(), want)
			}
		}
		c.ok("down", "--dir", c.dir)
		_ = f.Close()   // read only
		_ = in.Close()  // ends the script
		_ = user.Wait() // its working directory was removed
		c.struck()
	}
}
