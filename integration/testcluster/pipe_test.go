package testcluster

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/job"
)

// pipedSize is enough for many kernel requests.
const pipedSize = 8<<20 + 4321

func random(n int, seed uint64) []byte {
	p := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// TestReadsGoThroughPipes: large reads of datasets and of live files with holes return the right bytes through the
// mounts of all nodes with many readers; they use pipes, and no pipe is leaked.
func TestReadsGoThroughPipes(t *testing.T) {
	t.Parallel()
	NeedFUSE(t)
	tree := filepath.Join(t.TempDir(), "tree")
	sealed, live := random(pipedSize, 1), random(pipedSize, 2)
	writeTree(t, tree, map[string][]byte{"big": sealed})
	c := Start(t, Config{Datasets: []job.Dataset{{Source: tree, Name: "set"}}})
	c.Dataset(t, 0, "set")
	ms := c.Mount(t)
	clear(live[2<<20 : 4<<20+1])
	f, err := os.Create(filepath.Join(ms[0].Scratch, "live"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][2]int{{0, 2 << 20}, {4<<20 + 1, pipedSize}} {
		if _, err := f.WriteAt(live[part[0]:part[1]], int64(part[0])); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, m := range ms {
		Eventually(t, "the dataset is visible", func() bool {
			_, err := os.Stat(filepath.Join(m.Data, "set/big"))
			return err == nil
		})
		for range 3 {
			wg.Go(func() {
				for path, want := range map[string][]byte{filepath.Join(m.Data, "set/big"): sealed, filepath.Join(m.Scratch, "live"): live} {
					if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, want) {
						t.Errorf("%s: %d bytes, not the %d written: %v", path, len(b), len(want), err)
					}
				}
			})
		}
	}
	wg.Wait()
	piped := int64(0)
	for i, n := range c.Nodes {
		s := n.Peers().Stats()
		if piped += s.Piped; s.PipesFull > s.Piped>>19 {
			t.Errorf("node %d: %d of the pipes were full, %d bytes went through", i, s.PipesFull, s.Piped)
		}
	}
	if piped == 0 {
		t.Error("nothing went through a pipe")
	}
	for _, m := range ms {
		Eventually(t, "all pipes are given back", func() bool { return m.Stats().Pipes == 0 })
	}
}
