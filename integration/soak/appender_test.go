package soak

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// appender appends numbered lines to one file through the mount of one node, and records those that write and fsync
// have acknowledged.
type appender struct {
	j      *testJob
	node   int
	rng    *rand.Rand
	closes bool          // after each line
	pause  time.Duration // after each line: with slow appenders a restart falls between two
	f      *os.File
	next   int
	acked  []string
}

func newAppender(j *testJob, node int, rng *rand.Rand) *appender {
	pause := time.Duration(1+rng.IntN(40)<<rng.IntN(4)) * time.Millisecond
	return &appender{j: j, node: node, closes: node%2 == 1, rng: rng, pause: pause}
}

// step appends one line. An error closes the file, and the next step opens it again.
func (a *appender) step() {
	defer time.Sleep(a.pause)
	if a.f == nil && !a.j.try(operation{fmt.Sprintf("open on node %d of the log", a.node), &a.node, true, false, func() (err error) {
		a.f, err = os.OpenFile(a.j.scratch(a.node, "log"), os.O_WRONLY|os.O_APPEND, 0)
		return err
	}}) {
		a.f = nil
		time.Sleep(20 * time.Millisecond)
		return
	}
	line := fmt.Sprintf("node %d line %d %s\n", a.node, a.next, strings.Repeat("x", a.rng.IntN(40)))
	a.next++
	if a.j.try(operation{fmt.Sprintf("append on node %d", a.node), &a.node, true, false, func() error {
		_, err := a.f.WriteString(line)
		if err == nil {
			err = a.f.Sync()
		}
		return err
	}}) {
		if a.acked = append(a.acked, line); !a.closes {
			return
		}
	}
	a.close()
}

// close closes the file. Its error is ignored, since fsync has reported errors.
func (a *appender) close() {
	if a.f != nil {
		_ = a.f.Close()
		a.f = nil
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
				j.found(&j.verdict.lost, "read on node %d: %q was acknowledged on node %d and is missing (file of %d bytes)", reader.node, line, a.node, len(b))
				continue
			}
			at += k + len(line)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(j.scratch(reader.node, "log"), &st); err != nil || st.Size != int64(len(b)) {
		j.found(&j.verdict.wrong, "stat on node %d: %d bytes (%v), %d were read", reader.node, st.Size, err, len(b))
	}
}
