package main

import (
	"math"
	"os"
	"runtime/debug"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/mount"
)

// boundMemory sets the memory limit of Go's collector: the user's GOMEMLIMIT, else most of the cgroup's limit, else the
// sum of the known uses. It returns those uses.
func boundMemory(job *job.File, log *logrus.Entry) daemon.Memory {
	limit, limited := daemon.CgroupLimit(os.DirFS("/"))
	serving := int64(0)
	if limited {
		serving = daemon.ServingIn(limit)
	}
	m := daemon.MemoryOf(job, serving)
	m.Mount = mount.Memory + maxCovers*mount.CoverMemory + fsclient.WriteMemory + aheadOf(job) // one dataset with a plan
	from := "formula"
	switch {
	case os.Getenv("GOMEMLIMIT") != "":
		from = "GOMEMLIMIT"
	case limited:
		from = "cgroup"
		debug.SetMemoryLimit(limit / 10 * 9)
	default:
		debug.SetMemoryLimit(m.Total())
	}
	log = log.WithFields(logrus.Fields{
		"program": mib(m.Program), "metadata": mib(m.Metadata), "serving": mib(m.Serving), "sums": mib(m.Sums), "peers": mib(m.Peers),
		"staging": mib(m.Staging), "mount": mib(m.Mount), "total": mib(m.Total()), "limit": mib(debug.SetMemoryLimit(-1)), "from": from,
	})
	log.Info("memory that this daemon may use, in MiB")
	if limited && m.Total() > limit {
		log.WithField("cgroup", mib(limit)).Warn("the daemon may need more memory than its cgroup allows: raise memory: in the site configuration")
	}
	return m
}

// machineMemory returns the memory of this machine, in bytes; 0 if unknown.
func machineMemory() int64 {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return 0
	}
	return int64(i.Totalram) * int64(i.Unit)
}

// mib returns n in MiB; 0 if n means no limit.
func mib(n int64) int64 {
	if n == math.MaxInt64 {
		return 0
	}
	return n >> 20
}
