package testcluster

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// TestTreeIsWalkedByAll: a scan is bound by the source's latency, so all nodes stat files, each its own part. A node
// that cannot see the files leaves them to the scanning node.
func TestTreeIsWalkedByAll(t *testing.T) {
	t.Parallel()
	const n, leader = 2400, 1 // more than the leader's own workers stat
	m := make(map[string][]byte, n)
	for i := range n {
		m[fmt.Sprintf("d%d/%d", i%30, i)] = []byte{byte(i)}
	}
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	for _, blind := range []int{-1, 2} {
		t.Run(fmt.Sprint("blind ", blind), func(t *testing.T) {
			l := &looks{under: src + "/", leader: leader, blind: blind, there: make(chan struct{})}
			c := Start(t, Config{SourceOf: func(node int) source.FS { return lookedFS{source.OS{}, l, node} }})
			if err := c.Nodes[leader].StageIn(t.Context(), job.Dataset{Source: src, Name: "set"}); err != nil {
				t.Fatal(err)
			}
			ds := c.Dataset(t, 2, "set")
			if ds.Phase != cluster.Sealed || ds.Files != n {
				t.Fatalf("dataset: %+v", ds)
			}
			all := int64(0)
			for node := range l.at {
				if l.at[node].Load() == 0 {
					t.Errorf("node %d was asked nothing", node)
				}
				if node != blind {
					all += l.at[node].Load()
				}
			}
			if all != n {
				t.Errorf("%d looks at %d files", all, n)
			}
		})
	}
}

// looks counts the nodes that stat files. The leader sees no file before all other nodes were asked.
type looks struct {
	under         string
	leader, blind int
	at            [4]atomic.Int64
	asked         atomic.Int64 // of the other nodes
	there         chan struct{}
}

type lookedFS struct {
	source.FS
	*looks
	node int
}

func (f lookedFS) Lstat(path string) (source.Info, error) {
	if rel, ok := strings.CutPrefix(path, f.under); !ok || !strings.Contains(rel, "/") {
		return f.FS.Lstat(path)
	}
	switch first := f.at[f.node].Add(1) == 1; {
	case f.node == f.leader:
		select {
		case <-f.there:
		case <-time.After(Patience): // then the test reports which node did not stat
		}
	case first && f.asked.Add(1) == int64(len(f.at)-1):
		close(f.there)
	}
	if f.node == f.blind {
		return source.Info{}, syscall.EACCES
	}
	return f.FS.Lstat(path)
}
