package crash

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// appendRounds is how often two daemons are killed together, if no -time asks
// for more.
const appendRounds = 4

// appender appends numbered lines to one file through the mount of one node,
// and remembers those that write and fsync have acknowledged.
type appender struct {
	j      *testJob
	node   int
	rng    *rand.Rand
	closes bool // after each line
	f      *os.File
	next   int
	acked  []string
}

// step appends one line. An error closes the file, and the next step opens it
// again.
func (a *appender) step() {
	if a.f == nil {
		f, err := os.OpenFile(a.j.scratch(a.node, "log"), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			return
		}
		a.f = f
	}
	line := fmt.Sprintf("node %d line %d %s\n", a.node, a.next, strings.Repeat("x", a.rng.IntN(40)))
	a.next++
	deaths, calm := a.j.moment()
	_, err := a.f.WriteString(line)
	if err == nil {
		err = a.f.Sync()
	}
	if err == nil {
		a.acked = append(a.acked, line)
		if a.closes {
			a.close()
		}
		return
	}
	if now, still := a.j.moment(); calm && still && now == deaths {
		a.j.t.Errorf("append on node %d while all daemons live: %v", a.node, err)
	}
	a.close()
}

// close closes the file. What its error would say, fsync has said.
func (a *appender) close() {
	if a.f != nil {
		_ = a.f.Close()
		a.f = nil
	}
}

// TestAppendsSurviveKills: every node appends to one file with O_APPEND and
// fsync while two daemons at a time are killed. Each acknowledged line is in the
// file, whole, once, and in the order in which its node wrote it.
func TestAppendsSurviveKills(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 7))
	j := startJob(t, 4)
	home := rng.IntN(len(j.nodes))
	if err := os.WriteFile(j.scratch(home, "log"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	as := make([]*appender, len(j.nodes))
	for i := range as {
		as[i] = &appender{j: j, node: i, closes: i%2 == 1, rng: rand.New(rand.NewPCG(seed, uint64(100+i)))}
	}
	var over atomic.Bool
	var wg sync.WaitGroup
	for _, a := range as {
		pause := time.Duration(1+a.rng.IntN(40)<<a.rng.IntN(4)) * time.Millisecond
		wg.Go(func() {
			for !over.Load() {
				a.step()
				time.Sleep(pause) // slow appenders meet a restart between two lines
			}
		})
	}
	rounds := appendRounds
	if *long > 30*time.Second {
		rounds = int(*long / (5 * time.Second))
	}
	for range rounds {
		time.Sleep(time.Duration(500+rng.IntN(1000)) * time.Millisecond)
		two := rng.Perm(len(j.nodes))[:2]
		for _, i := range two {
			j.nodes[i].kill()
		}
		j.settle()
		time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
	}
	time.Sleep(lull + time.Second)
	over.Store(true)
	wg.Wait()
	total := 0
	for _, a := range as {
		a.close()
		total += len(a.acked)
	}
	for _, a := range as {
		checkLog(t, j, a, as)
	}
	t.Logf("%d lines acknowledged, %d rounds", total, rounds)
	if total == 0 {
		t.Error("nothing was acknowledged")
	}
}

// checkLog reads the file through the mount of reader's node.
func checkLog(t *testing.T, j *testJob, reader *appender, as []*appender) {
	t.Helper()
	b, err := os.ReadFile(j.scratch(reader.node, "log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		at := 0
		for _, line := range a.acked {
			k := bytes.Index(b[at:], []byte(line))
			if k < 0 {
				t.Errorf("read on node %d: %q was acknowledged on node %d and is missing (file of %d bytes)", reader.node, line, a.node, len(b))
				continue
			}
			at += k + len(line)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(j.scratch(reader.node, "log"), &st); err != nil || st.Size != int64(len(b)) {
		t.Errorf("stat on node %d: %d bytes (%v), %d were read", reader.node, st.Size, err, len(b))
	}
}
