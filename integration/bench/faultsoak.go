package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// soakTime is how long faults are injected.
const soakTime = 30 * time.Minute

var faultSoakFigure = figure{
	name: "fault-soak",
	about: "30 minutes of make soak, with any seed, which the log next to the table has: reads of a dataset, appends, checkpoints and changes of names on 4 nodes " +
		"under kills, stops, cuts, full and failing drives, garbage and clock steps; the loss of two nodes in the end",
	run: faultSoak,
}

// soakVerdict matches the summary line of the soak (its verdict).
var soakVerdict = regexp.MustCompile(`acknowledged writes lost (\d+), wrong bytes (\d+), ENOENT of what exists (\d+), hangs beyond give-up \+ 2 s (\d+), other errors (\d+)`)

var soakFigures = []string{
	"1 acknowledged writes lost", "1 wrong bytes", "1 ENOENT of what exists", "1 hangs beyond give-up + 2 s", "1 other errors",
}

// faultSoak runs the soak once, whatever the number of rounds.
func faultSoak(ctx context.Context, b *bench) error {
	took := soakTime
	if b.quick {
		took = 10 * time.Second
	}
	program, err := filepath.Abs(b.program)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, b.soak, "-test.v", "-test.timeout=0", "-test.run=^TestSoak$", "-time", took.String(), "-away=20", "-losses")
	cmd.Env = append(os.Environ(), "BIVOUAC_BIN="+program)
	out, failed := cmd.CombinedOutput()
	if errors.Is(failed, fs.ErrNotExist) {
		return fmt.Errorf("%w: run make bench-faults", failed)
	}
	if err := os.WriteFile(b.soak+".log", out, 0o644); err != nil {
		return err
	}
	n := soakVerdict.FindSubmatch(out)
	if n == nil {
		return fmt.Errorf("the soak has no verdict: %w: see %s.log", errors.Join(failed, ctx.Err()), b.soak)
	}
	for i, name := range soakFigures {
		v, err := strconv.ParseFloat(string(n[1+i]), 64)
		if err != nil {
			return err
		}
		b.take(name, "", armBivouac, v)
		b.want(name, "", "0")
	}
	if failed != nil {
		b.note("the soak failed: see %s.log", b.soak)
	}
	return nil
}
