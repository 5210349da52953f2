package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deepTree makes a source of small files in directories that are deeper than the
// descriptors that find and du keep of those above, so that they go back up by "..".
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

// walkers walk trees again and again, each with nothing between its walks but the
// gate, at which all of them can be held up.
type walkers struct {
	t    *testing.T
	gate sync.RWMutex // held for reading by who walks
	once sync.Once    // closes stop
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
		w.gate.RLock()
		err := x.walk()
		w.gate.RUnlock()
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

// more waits until each has walked n times more.
func (w *walkers) more(n int64) {
	w.t.Helper()
	for _, x := range w.all {
		want := x.walks.Load() + n
		eventually(w.t, x.what+" walks on", func() bool { return x.walks.Load() >= want })
	}
}

// program runs one that has nothing to complain of.
func program(args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = new(strings.Builder)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %.300s", err, cmd.Stderr)
	}
	return nil
}

// climb walks a tree, and goes up by "..", which has to lead where it came from.
func climb(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	tick := time.NewTicker(2 * time.Millisecond) // it is slow
	defer tick.Stop()
	fd, err = climbIn(fd, tick)
	return errors.Join(err, unix.Close(fd))
}

// climbIn walks what is below fd, which it closes, and returns another for it.
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

// directories is the names of directories in one.
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

// TestViewWalked: covers and views come under those who walk the trees all the time,
// from above a dataset, and none of them meets another directory than it left; when
// none walks the views are shown, and the walks go on in them.
func TestViewWalked(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needViews(t)
	c := pitch(t, "2")
	// On node 0 somebody is in a tree at nearly all times, on node 1 only now and then.
	all := []*walkers{walking(t, c.node("0", "data"), "find", "du", "climb"), walking(t, c.node("1", "data"), "find")}
	for i := range 4 {
		c.ok("stage-in", c.deepTree(fmt.Sprint("deep", i)), "--dir", c.dir)
		for _, w := range all {
			w.more(4)
		}
	}
	for _, w := range all {
		w.gate.Lock()
	}
	for i := range 4 {
		c.awaitViews(fmt.Sprint("deep", i), "2")
	}
	for _, w := range all {
		w.gate.Unlock()
		w.more(3)
		w.end()
	}
	c.struck()
}

// filling stages a dataset in slowly, so that it can be used before its view is made,
// and returns when that is so.
func filling(t *testing.T) *camp {
	t.Helper()
	needRoot(t)
	needViews(t)
	c := pitch(t, "2", "--rate", "1M")
	c.ok("stage-in", c.smallTree("filled", 60, 99_999), "--dir", c.dir, "--background")
	c.covered("filled")
	return c
}

// TestViewHeld: who has a directory of the dataset open keeps its view from being
// shown, but not another's; when he has left it is shown. It does not keep the job
// from ending, either.
func TestViewHeld(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"", "down", "kill"} {
		c := filling(t)
		dir, err := os.Open(c.node("0", "data", "filled"))
		if err != nil {
			t.Fatal(err)
		}
		user := exec.Command("sleep", "1000")
		user.Stdin = dir
		err = user.Start()
		_ = dir.Close() // the user has his own
		if err != nil {
			t.Fatal(err)
		}
		leave := func() {
			_ = user.Process.Kill()
			_ = user.Wait() // it was killed
		}
		defer leave()
		c.ok("wait", "--dir", c.dir)
		eventually(t, "the views are made", func() bool { return c.said("kernel view made") == 2 })
		c.ok("stage-in", c.smallTree("later", 20, 3000), "--dir", c.dir)
		c.awaitViews("later", "2")
		c.awaitViews("filled", "1") // that of the other node
		if end == "" {
			leave()
			c.awaitViews("filled", "2")
			c.wantTree("filled", 60, 99_999)
		}
		if end == "kill" {
			c.killAll()
		}
		c.struck()
	}
}

// TestViewFilesOpen: who has files open all the time keeps no view from being shown,
// and goes on with his.
func TestViewFilesOpen(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		c := filling(t)
		const want = 99_999
		f, err := os.Open(c.node("0", "data", "filled", "007"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c.ok("wait", "--dir", c.dir)
		eventually(t, "the views are made", func() bool { return c.said("kernel view made") == 2 })
		g, err := os.Open(c.node("0", "data", "filled", "008"))
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		c.awaitViews("filled", "2")
		for name, f := range map[string]*os.File{"007": f, "008": g} {
			b := make([]byte, want)
			if _, err := f.ReadAt(b, 0); err != nil || string(b) != strings.Repeat(name, want/3) {
				t.Errorf("an open file has other bytes than before, or none: %v", err)
			}
		}
		c.wantTree("filled", 60, want)
		if kill {
			c.killAll()
		}
		c.ok("down", "--dir", c.dir)
		_, _ = f.Close(), g.Close() // read only
		c.struck()
	}
}
