package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// opened is a tree whose opens are being watched.
type opened struct {
	*Opens
	t    *testing.T
	dir  string
	now  time.Time
	seen map[string]int
}

func newOpened(t *testing.T, dirs ...string) *opened {
	t.Helper()
	w := &opened{t: t, dir: t.TempDir(), now: time.Unix(1e9, 0), seen: make(map[string]int)}
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(w.dir, d, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			if err := os.WriteFile(filepath.Join(w.dir, d, fmt.Sprint(i)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	root, err := os.Open(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	if w.Opens, err = WatchOpens(root, dirs, w.now); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func (w *opened) open(name string) {
	w.t.Helper()
	f, err := os.Open(filepath.Join(w.dir, name))
	if err != nil {
		w.t.Fatal(err)
	}
	_ = f.Close() // opening is enough
}

// read reads the recorded opens after a delay.
func (w *opened) read(after time.Duration) (over bool, missed float64) {
	w.t.Helper()
	w.now = w.now.Add(after)
	over, missed, err := w.Read(w.now, func(dir int, name string) { w.seen[filepath.Join(w.dirs[dir], name)]++ })
	if err != nil {
		w.t.Fatal(err)
	}
	return over, missed
}

// TestOpens: opens of files are recorded, opens of directories are not.
func TestOpens(t *testing.T) {
	w := newOpened(t, "", "a", "b")
	for _, f := range []string{"1", "a/2", "b/3", "a/2", "b", "b/sub", ""} {
		w.open(f)
	}
	if over, _ := w.read(time.Millisecond); over {
		t.Error("few opens are too many")
	}
	if want := map[string]int{"1": 1, "a/2": 2, "b/3": 1}; fmt.Sprint(w.seen) != fmt.Sprint(want) {
		// The kernel merges identical consecutive events.
		t.Errorf("seen %v, want %v", w.seen, want)
	}
}

// TestOpensHot: opens beyond the budget are not watched for a while, and are estimated.
func TestOpensHot(t *testing.T) {
	w := newOpened(t, "a")
	hot := func() (over bool, missed float64) {
		for n := 0; !over; n++ {
			if n > 2*openBurst/1000 {
				t.Fatal("watches stay in spite of hot opens")
			}
			for i := range 1000 {
				w.open(fmt.Sprintf("a/%d", i%10))
			}
			over, missed = w.read(time.Millisecond)
		}
		return over, missed
	}
	if _, missed := hot(); missed != 0 {
		t.Errorf("%v opens are missed of each, from the start", missed)
	}
	w.open("a/1")
	clear(w.seen)
	w.read(100 * time.Millisecond)
	if w.fd >= 0 || len(w.seen) > 0 {
		t.Fatal("watches come back without a budget")
	}
	w.read(900 * time.Millisecond)
	if w.fd < 0 {
		t.Fatal("watches do not come back")
	}
	began := w.now
	if _, missed := hot(); missed != float64(time.Second)/float64(w.now.Sub(began)) {
		t.Errorf("%v opens are missed of each, after a second without watches and %v with them", missed, w.now.Sub(began))
	}
}

// TestOpensOverflow: an overflow of the queue is not an error, and later opens are recorded again.
func TestOpensOverflow(t *testing.T) {
	w := newOpened(t, "a")
	w.Opens.budget = 1e9
	for i := range 40_000 {
		w.open(fmt.Sprintf("a/%d", i%10))
	}
	if over, _ := w.read(time.Millisecond); !over {
		t.Skip("the queue is long here: see fs.inotify.max_queued_events")
	}
	w.read(2 * time.Second)
	clear(w.seen)
	w.open("a/7")
	if w.read(time.Millisecond); w.seen["a/7"] != 1 {
		t.Errorf("seen %v after an overflow", w.seen)
	}
}

// TestOpensTooMany: too many directories cause an error that says so; so does a directory that does not exist.
func TestOpensTooMany(t *testing.T) {
	for dirs, want := range map[int]error{1: unix.ENOENT, mostDirs + 1: unix.ENOSPC} {
		root, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		names := make([]string, dirs)
		for i := range names {
			names[i] = "none"
		}
		if _, err := WatchOpens(root, names, time.Unix(1, 0)); !errors.Is(err, want) {
			t.Errorf("%d directories: %v, want %v", dirs, err, want)
		}
		if _, err := root.Stat(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("the root is left open: %v", err)
		}
	}
}
