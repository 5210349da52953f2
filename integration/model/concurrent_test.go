package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/integration/testcluster"
)

// TestConcurrentApart: workers in separate directories do not disturb each other, on any mounts.
func TestConcurrentApart(t *testing.T) {
	seed := firstSeed(t)
	c := newCamp(t, testcluster.Config{})
	cfg := Config{Mounts: len(c.mounts), Every: 100, Lag: lag, LooseAppend: true, Together: true, Known: knownTogether}
	end := time.Now().Add(lookFor(8 * time.Second))
	for round := uint64(0); time.Now().Before(end) && !t.Failed(); round++ {
		var wg sync.WaitGroup
		c.watched(t, func() {
			for w := range uint64(4) {
				sys, s := c.fresh(t), seed+4*round+w
				wg.Go(func() {
					f := explore(sys, s, scriptLen, cfg, make(map[string]int))
					_ = sys.Close() // files that a failing script left open
					if f != nil {
						t.Errorf("seed %d; alone it may be right:\n%v", s, f)
					}
				})
			}
			wg.Wait()
		})
	}
}

const (
	workers   = 4
	perWorker = 3 // steps of one worker in a round
)

// TestConcurrentShared: concurrent operations of several mounts on the same names are linearizable.
func TestConcurrentShared(t *testing.T) {
	c := newCamp(t, testcluster.Config{})
	races(t, lookFor(10*time.Second), func() *Mounts {
		if c.tests > 0 {
			c.clear(t)
		}
		return c.fresh(t)
	}, func(test func()) { c.watched(t, test) }, Config{Mounts: len(c.mounts), Lag: lag, LooseAppend: true, Known: knownTogether})
}

// TestConcurrentKernel: histories of a kernel file system are explained, too.
func TestConcurrentKernel(t *testing.T) {
	fresh := native(t)
	races(t, lookFor(3*time.Second), func() *Mounts { return fresh().(*Mounts) }, func(test func()) { test() }, nativeConfig)
}

// races runs rounds for a while.
func races(t *testing.T, some time.Duration, fresh func() *Mounts, watched func(test func()), cfg Config) {
	t.Helper()
	seed := firstSeed(t)
	n := 0
	for end := time.Now().Add(some); time.Now().Before(end) && !t.Failed(); n++ {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		watched(func() { round(t, r, fresh(), cfg) })
	}
	t.Logf("%d rounds of %d steps by %d workers", n, perWorker, workers)
}

// round runs concurrent workers on a few names in two directories.
func round(t *testing.T, r *rand.Rand, sys *Mounts, cfg Config) {
	t.Helper()
	defer sys.Close()
	start := NewRunner(sys, cfg)
	setup := []Op{{Kind: "mkdir", Path: "x", Mode: 0o755}, {Kind: "mkdir", Path: "y", Mode: 0o755}}
	for range r.IntN(5) {
		setup = append(setup, sharedStep(r, 0))
	}
	for _, o := range setup {
		if f := start.Step(o); f != nil {
			t.Fatalf("before the race:\n%v", f)
		}
	}
	clear(start.FS().handles)
	events := race(r, sys, cfg)
	for m := range cfg.Mounts {
		var tree Tree
		var err error
		explained := false
		start.within(func() bool { // the attributes of directories may lag
			tree, err = sys.Tree(m)
			explained = err == nil && Explain(start.FS(), events, plain(tree))
			return explained
		})
		if !explained {
			t.Errorf("no order explains this, through m%d (%v):\n%s%s", m, err, Format(setup), history(events, tree))
			return
		}
	}
}

// race runs the steps of all workers concurrently. It omits steps that are known to be refused.
func race(r *rand.Rand, sys *Mounts, cfg Config) []Event {
	var mu sync.Mutex
	var events []Event // guarded by mu
	var wg sync.WaitGroup
	zero := time.Now()
	for w := range workers {
		own := NewMounts(sys.dirs...)
		var steps []Op
		for range perWorker {
			steps = append(steps, sharedStep(r, w%cfg.Mounts))
		}
		wg.Go(func() {
			for _, o := range steps {
				e := Event{Worker: w, Op: o, Start: time.Since(zero).Nanoseconds()}
				got := own.Do(o)
				e.Got, e.End = got.Err, time.Since(zero).Nanoseconds()
				if slices.ContainsFunc(cfg.Known, func(d Deviation) bool { return d.Refused != nil && d.Refused(o, got) }) {
					continue
				}
				mu.Lock()
				events = append(events, e)
				mu.Unlock()
			}
			_ = own.Close() // empty files
		})
	}
	wg.Wait()
	slices.SortFunc(events, func(a, b Event) int { return int(a.Start - b.Start) })
	return events
}

// sharedStep generates a step on one of the shared names.
func sharedStep(r *rand.Rand, mount int) Op {
	name := func() string { return string("xy"[r.IntN(2)]) + "/" + string("ab"[r.IntN(2)]) }
	o := Op{Mount: mount, Path: name(), Mode: 0o755}
	switch o.Kind = []string{"rename", "rename", "rename", "link", "link", "open", "open", "mkdir", "unlink", "rmdir", "symlink", "lstat"}[r.IntN(12)]; o.Kind {
	case "rename":
		o.To, o.Flags = name(), []int{0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE}[r.IntN(4)]
	case "link":
		o.To = name()
	case "symlink":
		o.To = "nowhere"
	case "open":
		o.Flags = unix.O_CREAT | unix.O_EXCL | unix.O_RDWR
	}
	return o
}

// plain returns the tree without the attributes that depend on the time of an event.
func plain(t Tree) Tree {
	for p, n := range t {
		n.Atime, n.Mtime = 0, 0
		t[p] = n
	}
	return t
}

func history(events []Event, tree Tree) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintln(&b, e)
	}
	for p, n := range tree {
		fmt.Fprintf(&b, "at the end %q: %v\n", p, Result{Attr: &n.Attr})
	}
	return b.String()
}

// TestExplain: impossible histories are not explained.
func TestExplain(t *testing.T) {
	const enoent, eexist = syscall.ENOENT, syscall.EEXIST
	create := func(p string) Op { return Op{Kind: "open", Path: p, Flags: unix.O_CREAT | unix.O_EXCL, Mode: 0o644} }
	mv := func(a, b string, flags int) Op { return Op{Kind: "rename", Path: a, To: b, Flags: flags} }
	stat := func(p string) Op { return Op{Kind: "lstat", Path: p} }
	tests := []struct {
		name   string
		events []Event // in a directory where x/a is a file
		end    string  // names at the end
		want   bool
	}{
		{"created twice", []Event{{0, create("y/a"), 0, 0, 9}, {1, create("y/a"), 0, 0, 9}}, "x/a y/a", false},
		{"created once", []Event{{0, create("y/a"), eexist, 0, 9}, {1, create("y/a"), 0, 0, 9}}, "x/a y/a", true},
		{"moved to two places", []Event{{0, mv("x/a", "y/a", 0), 0, 0, 9}, {1, mv("x/a", "y/b", 0), 0, 0, 9}}, "y/a y/b", false},
		{"moved once", []Event{{0, mv("x/a", "y/a", 0), enoent, 0, 9}, {1, mv("x/a", "y/b", 0), 0, 0, 9}}, "y/b", true},
		{"moved on", []Event{{0, mv("x/a", "y/a", 0), 0, 0, 9}, {1, mv("y/a", "y/b", 0), 0, 0, 9}}, "y/b", true},
		{"moved on before", []Event{{0, mv("x/a", "y/a", 0), 0, 5, 9}, {1, mv("y/a", "y/b", 0), 0, 0, 4}}, "y/b", false},
		{"both names for a moment", []Event{{0, mv("x/a", "y/a", 0), 0, 0, 9}, {1, stat("y/a"), 0, 1, 2}, {1, stat("x/a"), 0, 3, 4}}, "y/a", false},
		{"neither name for a moment", []Event{{0, mv("x/a", "y/a", 0), 0, 0, 9}, {1, stat("x/a"), enoent, 1, 2}, {1, stat("y/a"), enoent, 3, 4}}, "y/a", false},
		{"before and after", []Event{{0, mv("x/a", "y/a", 0), 0, 0, 9}, {1, stat("y/a"), enoent, 1, 2}, {1, stat("y/a"), 0, 3, 4}}, "y/a", true},
		{"lost", []Event{{0, mv("x/a", "y/a", 0), 0, 0, 9}}, "", false},
		{"kept the old name", []Event{{0, mv("x/a", "y/a", 0), 0, 0, 9}}, "x/a y/a", false},
		{"replaced without leave", []Event{{0, create("y/a"), 0, 0, 1}, {1, mv("x/a", "y/a", unix.RENAME_NOREPLACE), 0, 2, 9}}, "y/a", false},
		{"exchanged with nothing", []Event{{0, mv("x/a", "y/a", unix.RENAME_EXCHANGE), 0, 0, 9}}, "y/a", false},
		{"linked what was gone", []Event{{0, Op{Kind: "unlink", Path: "x/a"}, 0, 0, 1}, {1, Op{Kind: "link", Path: "x/a", To: "y/a"}, 0, 2, 9}}, "y/a", false},
		{"linked what moved", []Event{{0, mv("x/a", "x/b", 0), 0, 0, 9}, {1, Op{Kind: "link", Path: "x/a", To: "y/a"}, 0, 0, 9}}, "x/b=y/a", true},
		{"made twice, the other way round", []Event{
			{0, create("y/b"), 0, 0, 9}, {1, Op{Kind: "symlink", Path: "y/b", To: "nowhere"}, 0, 0, 9}, {2, Op{Kind: "unlink", Path: "y/b"}, 0, 0, 9}, {2, stat("x/a"), 0, 10, 11},
		}, "x/a y/b", true},
		{"linked, not counted", []Event{{1, Op{Kind: "link", Path: "x/a", To: "y/a"}, 0, 0, 9}}, "x/a y/a", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			start := NewFS()
			for _, o := range []Op{{Kind: "mkdir", Path: "x", Mode: 0o755}, {Kind: "mkdir", Path: "y", Mode: 0o755}, create("x/a")} {
				start.Do(o)
			}
			if got := Explain(start, tt.events, treeOf(tt.end)); got != tt.want {
				t.Errorf("Explain = %v, want %v", got, tt.want)
			}
		})
	}
}

// treeOf makes a tree of files; a=b are two names of one file.
func treeOf(end string) Tree {
	f := NewFS()
	f.Do(Op{Kind: "mkdir", Path: "x", Mode: 0o755})
	f.Do(Op{Kind: "mkdir", Path: "y", Mode: 0o755})
	for names := range strings.FieldsSeq(end) {
		first, second, linked := strings.Cut(names, "=")
		f.Do(Op{Kind: "open", Path: first, Flags: unix.O_CREAT, Mode: 0o644})
		if linked {
			f.Do(Op{Kind: "link", Path: first, To: second})
		}
	}
	return f.Tree()
}
