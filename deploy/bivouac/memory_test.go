package main

import (
	"math"
	"os"
	"runtime/debug"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
)

// TestBoundMemory: the collector's limit is set by the user, else by the cgroup or the formula, and the log says by
// which.
func TestBoundMemory(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	log, hook := test.NewNullLogger()
	job := &job.File{Hosts: make([]string, 4)}

	t.Setenv("GOMEMLIMIT", "3GiB")
	m := boundMemory(job, logrus.NewEntry(log))
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("the limit is %d beside the user's", got)
	}
	if from := hook.Entries[0].Data["from"]; from != "GOMEMLIMIT" || m.Mount == 0 {
		t.Errorf("the log says %v, and the formula %+v", from, m)
	}

	hook.Reset()
	t.Setenv("GOMEMLIMIT", "")
	m = boundMemory(job, logrus.NewEntry(log))
	want, from := m.Total(), "formula"
	if limit, limited := daemon.CgroupLimit(os.DirFS("/")); limited {
		want, from = limit/10*9, "cgroup"
	}
	said := hook.Entries[0].Data
	if got := debug.SetMemoryLimit(-1); got != want || said["from"] != from || said["limit"] != want>>20 {
		t.Errorf("the limit is %d, the log says %v, want %d from the %s", got, said, want, from)
	}
	if said["total"] != m.Total()>>20 || said["serving"] != m.Serving>>20 {
		t.Errorf("the log says %v, want %+v", said, m)
	}
}
