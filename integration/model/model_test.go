package model

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the first script; 0 is the time")
	timeFlag = flag.Duration("time", 0, "how long to look; 0 is as long as make test can wait")
)

// firstSeed prints the seed that it returns.
func firstSeed(t *testing.T) uint64 {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("first seed %d", seed)
	return seed
}

// explore runs a generated script of n steps in a new system, and counts the deviations in met.
func explore(sys System, seed uint64, n int, cfg Config, met map[string]int) *Failure {
	g := NewGenerator(seed, cfg.Mounts)
	r := NewRunner(sys, cfg)
	defer func() {
		for name, n := range r.Met {
			met[name] += n
		}
	}()
	for range n {
		if f := r.Step(g.Next(r.FS())); f != nil {
			return f
		}
	}
	return r.Finish()
}

// nativeConfig is for a local file system.
var nativeConfig = Config{Mounts: 3, Every: 50, NoAtime: true, Known: []Deviation{{
	Name: "xattrs", Reason: "on ext4 they share one block",
	Refused: func(o Op, got Result) bool { return o.Kind == "setxattr" && got.Err == syscall.ENOSPC },
}}}

// native makes a directory of the local file system, presented as three mounts.
func native(t *testing.T) func() System {
	root, n := t.TempDir(), 0
	return func() System {
		n++
		dir := filepath.Join(root, strconv.Itoa(n))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return NewMounts(dir, dir, dir)
	}
}

// TestModelIsTheKernel: the model agrees with a kernel file system.
func TestModelIsTheKernel(t *testing.T) {
	seed := firstSeed(t)
	fresh := native(t)
	for i := range uint64(150) {
		sys := fresh()
		f := explore(sys, seed+i, 200, nativeConfig, make(map[string]int))
		_ = sys.Close() // files that a failing script left open
		if f == nil {
			continue
		}
		short := Shrink(f, func(script []Op) *Failure {
			sys := fresh()
			defer sys.Close()
			return Run(sys, script, nativeConfig)
		})
		t.Fatalf("seed %d:\n%v", seed+i, short)
	}
}
