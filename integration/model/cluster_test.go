package model

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/integration/testcluster"
)

const (
	scriptLen = 300
	patience  = 2 * time.Minute // for one step
)

// camp is a job of which the first nodes are mounted.
type camp struct {
	mounts []*testcluster.Mounted
	tests  int
}

func newCamp(t *testing.T, cfg testcluster.Config) *camp {
	t.Helper()
	testcluster.NeedFUSE(t)
	c := testcluster.Start(t, cfg)
	return &camp{mounts: c.Mount(t, 0, 1, 2)}
}

// fresh returns an empty directory as seen through all mounts.
func (c *camp) fresh(t *testing.T) *Mounts {
	t.Helper()
	c.tests++
	name := strconv.Itoa(c.tests)
	if err := os.Mkdir(filepath.Join(c.mounts[0].Scratch, name), 0o755); err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, m := range c.mounts {
		dirs = append(dirs, filepath.Join(m.Scratch, name))
	}
	return NewMounts(dirs...)
}

// clear removes the directory of the last test.
func (c *camp) clear(t *testing.T) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(c.mounts[1].Scratch, strconv.Itoa(c.tests))); err != nil {
		t.Error(err)
	}
}

// watched calls test, and aborts all mounts if it hangs, so that it ends with an error.
func (c *camp) watched(t *testing.T, test func()) {
	t.Helper()
	timer := time.AfterFunc(patience, func() {
		t.Error("it hangs: the mounts are aborted")
		for _, m := range c.mounts {
			m.Abort()
		}
	})
	defer timer.Stop()
	test()
}

func (c *camp) run(t *testing.T, script []Op, cfg Config) (f *Failure) {
	t.Helper()
	sys := c.fresh(t)
	defer sys.Close()
	c.watched(t, func() { f = Run(sys, script, cfg) })
	return f
}

// TestModel: random scripts on three mounts of four nodes behave as the model predicts.
func TestModel(t *testing.T) { modelTest(t, testcluster.Config{}, lag) }

// TestModelWide: the same holds if directories are spread over the nodes at a few entries.
func TestModelWide(t *testing.T) { modelTest(t, testcluster.Config{SplitAt: 4}, 5*time.Second) }

func modelTest(t *testing.T, cluster testcluster.Config, lag time.Duration) {
	t.Helper()
	seed := firstSeed(t)
	c := newCamp(t, cluster)
	cfg := Config{Mounts: len(c.mounts), Every: 50, Lag: lag, LooseAppend: true, Known: known}
	met := make(map[string]int)
	n := uint64(0)
	for end := time.Now().Add(lookFor(14 * time.Second)); time.Now().Before(end); n++ {
		sys := c.fresh(t)
		var f *Failure
		c.watched(t, func() { f = explore(sys, seed+n, scriptLen, cfg, met) })
		_ = sys.Close() // files that a failing script left open
		if f != nil {
			t.Logf("seed %d fails:\n%v", seed+n, f)
			short := Shrink(f, func(script []Op) *Failure { return c.run(t, script, cfg) })
			t.Fatalf("seed %d, shortened; save it in testdata:\n%v", seed+n, short)
		}
		c.clear(t)
	}
	t.Logf("%d scripts of %d steps; known deviations met: %v", n, scriptLen, met)
}

// TestScripts runs scripts that failed in the past, on the mounts and on a kernel file system.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.script")
	if err != nil || len(files) == 0 {
		t.Fatalf("scripts: %v, %v", files, err)
	}
	c := newCamp(t, testcluster.Config{})
	fresh := native(t)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			script, err := Parse(string(text), len(c.mounts))
			if err != nil {
				t.Fatal(err)
			}
			for range 5 { // directories get random homes
				if f := c.run(t, script, Config{Mounts: len(c.mounts), Lag: lag, LooseAppend: true, Known: known}); f != nil {
					t.Fatalf("mounts:\n%v", f)
				}
			}
			sys := fresh()
			defer sys.Close()
			if f := Run(sys, script, nativeConfig); f != nil {
				t.Errorf("kernel:\n%v", f)
			}
		})
	}
}

func lookFor(usual time.Duration) time.Duration {
	if *timeFlag > 0 {
		return *timeFlag
	}
	return usual
}
