package daemon

import (
	"bufio"
	"bytes"
	"cmp"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
	"github.com/bivouacfs/bivouac/stagein"
)

// Memory is the upper bound of a daemon's memory, in bytes, by use. The package comment has
// the formula.
type Memory struct {
	Program  int64 `json:"program"`
	Metadata int64 `json:"metadata"`
	Serving  int64 `json:"serving"`
	Sums     int64 `json:"sums"`
	Peers    int64 `json:"peers"`
	Staging  int64 `json:"staging"`
	Mount    int64 `json:"mount"` // of the mount; the program adds it
}

// programMemory is for code, stacks, workers, open files and garbage.
const programMemory = 128 << 20

// MemoryOf returns the bound for the daemon of j. serving is Config.Memory.
func MemoryOf(j *job.File, serving int64) Memory {
	serving = cmp.Or(serving, rpc.DefaultMemory)
	return Memory{
		Program:  programMemory,
		Metadata: pebblestore.Memory + raftstore.Memory,
		Serving:  serving,
		Sums:     max(sumsIn(j, serving), 0),
		Peers:    int64(len(j.Hosts)-1) * rpc.PeerMemory,
		Staging:  int64(max(len(j.Datasets), 1)) * stagein.Memory,
	}
}

// Total returns the sum of all uses.
func (m Memory) Total() int64 {
	return m.Program + m.Metadata + m.Serving + m.Sums + m.Peers + m.Staging + m.Mount
}

// sumsIn returns the bound for checksums of scratch data, for chunkstore.Config.Sums: 1 MiB covers 1 GiB of data, less
// with small files.
func sumsIn(j *job.File, serving int64) int64 {
	if j.NoChecksums {
		return -1
	}
	serving = cmp.Or(serving, rpc.DefaultMemory)
	return serving / 4
}

// ServingIn returns Config.Memory for a daemon whose total memory is limited: a quarter of the limit, at least 16 MiB
// and at most the default.
func ServingIn(limit int64) int64 {
	return min(max(limit/4, 16<<20), rpc.DefaultMemory)
}

// CgroupLimit returns the memory limit of this process's cgroups, v1 or v2; false if there is none. root is the
// machine's root directory.
func CgroupLimit(root fs.FS) (int64, bool) {
	b, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	limit := int64(math.MaxInt64)
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		_, rest, _ := strings.Cut(s.Text(), ":")
		controllers, group, ok := strings.Cut(rest, ":")
		switch {
		case !ok:
		case controllers == "":
			limit = min(limit, limitOf(root, "sys/fs/cgroup", group, "memory.max"))
		case controllers == "memory":
			limit = min(limit, limitOf(root, "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"))
		}
	}
	return limit, limit < unlimited
}

// unlimited is the smallest value that cgroup v1 reports for a group without a limit.
const unlimited = 1 << 60

// limitOf returns the lowest limit of group and its ancestors. A file that cannot be read, such as outside a container,
// or holds no number, such as "max", sets no limit.
func limitOf(root fs.FS, mount, group, file string) int64 {
	limit := int64(math.MaxInt64)
	for dir := path.Clean("/" + group); ; dir = path.Dir(dir) {
		if b, err := fs.ReadFile(root, path.Join(mount, dir, file)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
		}
		if dir == "/" {
			return limit
		}
	}
}
