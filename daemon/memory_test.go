package daemon

import (
	"testing"
	"testing/fstest"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/stagein"
)

func TestMemoryOf(t *testing.T) {
	one := MemoryOf(&job.File{Hosts: make([]string, 1)}, 0)
	if one.Serving != rpc.DefaultMemory || one.Peers != 0 || one.Staging != stagein.Memory {
		t.Errorf("of a single node = %+v", one)
	}
	many := MemoryOf(&job.File{Hosts: make([]string, 512), Datasets: make([]job.Dataset, 3)}, 64<<20)
	if many.Serving != 64<<20 || many.Peers != 511*rpc.PeerMemory || many.Staging != 3*stagein.Memory {
		t.Errorf("of 512 nodes with three datasets = %+v", many)
	}
	if off := MemoryOf(&job.File{Hosts: make([]string, 1), NoChecksums: true}, 0); many.Sums != 16<<20 || off.Sums != 0 {
		t.Errorf("checksums take %d bytes with 64 MiB for requests, %d if they are off", many.Sums, off.Sums)
	}
	many.Mount = 7
	if got := many.Total() - (many.Program + many.Metadata + many.Serving + many.Sums + many.Peers + many.Staging); got != 7 {
		t.Errorf("Total has %d bytes of the mount, want 7", got)
	}
	for limit, want := range map[int64]int64{0: 16 << 20, 512 << 20: 128 << 20, 64 << 30: rpc.DefaultMemory} {
		if got := ServingIn(limit); got != want {
			t.Errorf("ServingIn(%d) = %d, want %d", limit, got, want)
		}
	}
}

func TestCgroupLimit(t *testing.T) {
	for _, c := range []struct {
		what  string
		files map[string]string
		want  int64 // 0 means none
	}{
		{"no cgroups", nil, 0},
		{"v2", map[string]string{"proc/self/cgroup": "0::/bivouac-7\n", "sys/fs/cgroup/bivouac-7/memory.max": "1000\n"}, 1000},
		{"v2 without a limit", map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		{"v2, the group above", map[string]string{"proc/self/cgroup": "0::/a/b/c\n", "sys/fs/cgroup/a/b/c/memory.max": "max\n",
			"sys/fs/cgroup/a/b/memory.max": "3000", "sys/fs/cgroup/a/memory.max": "2000"}, 2000},
		{"v1", map[string]string{"proc/self/cgroup": "5:devices:/\n4:memory:/j\n0::/\n",
			"sys/fs/cgroup/memory/j/memory.limit_in_bytes": "4096", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 4096},
		{"v1 without a limit", map[string]string{"proc/self/cgroup": "4:memory:/j\n",
			"sys/fs/cgroup/memory/j/memory.limit_in_bytes": "9223372036854771712"}, 0},
		{"v1 of a container, whose path is not here", map[string]string{"proc/self/cgroup": "4:memory:/docker/x\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "5000"}, 5000},
		{"a group with a colon, and one that climbs", map[string]string{"proc/self/cgroup": "0::/a:b\n4:memory:/../../etc\n",
			"sys/fs/cgroup/a:b/memory.max": "6000"}, 6000},
		{"nonsense", map[string]string{"proc/self/cgroup": "\n::\nmemory\n0::\n", "sys/fs/cgroup/memory.max": "-5"}, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, text := range c.files {
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			got, limited := CgroupLimit(root)
			if limited != (c.want > 0) || limited && got != c.want {
				t.Errorf("CgroupLimit = %d, %v, want %d", got, limited, c.want)
			}
		})
	}
}
