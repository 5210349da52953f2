package local

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

const planned = 1600 // files

func plannedName(i int) string { return fmt.Sprintf("%04d", i) }
func plannedText(i int) string { return strings.Repeat(plannedName(i), 500+i%1000) }

// TestPlanPrefetch: with an access plan, a rank on each node finds the samples of the other node in
// the page cache or in the daemon's memory in every epoch, through covers and kernel views.
func TestPlanPrefetch(t *testing.T) {
	for _, view := range []string{"off", "auto"} {
		t.Run(view, func(t *testing.T) {
			t.Parallel()
			needRoot(t)
			c := pitch(t, "2", "--kernel-view", view)
			src := mkdir(t, c.path("set"))
			for i := range planned {
				write(t, filepath.Join(src, plannedName(i)), []byte(plannedText(i)))
			}
			c.ok("stage-in", src, "--dir", c.dir)
			if view == "off" {
				c.covered("set")
			} else {
				needViews(t)
				c.awaitViews("set", "2")
			}
			c.ok("plan", "set", "set", "seed:7,ranks=2", "--dir", c.dir)
			count := func(metric string) float64 { return c.metric("0", metric) + c.metric("1", metric) }
			const reads = `bivouac_rpc_requests_total{op="read"}`
			var before, ahead float64
			for e := range 3 {
				if e > 0 { // the first ones show where the ranks are
					before, ahead = count(reads), count("bivouac_prefetched_files_total")
				}
				c.epoch(e)
				if e == 0 {
					continue
				}
				if n := count(reads) - before; n > planned/2/5 {
					t.Errorf("epoch %d: %v of %d files of other nodes were read one by one", e, n, planned/2)
				}
				if n := count("bivouac_prefetched_files_total") - ahead; n < planned/2/2 {
					t.Errorf("epoch %d: %v of %d files of other nodes were prefetched", e, n, planned/2)
				}
			}
			c.ok("down", "--dir", c.dir)
			c.gone(c.dir)
		})
	}
}

// epoch has a rank on each node read an epoch of DistributedSampler(seed=7), and drop the pages.
func (c *camp) epoch(number int) {
	c.t.Helper()
	plan := accessplan.Plan{Kind: accessplan.Torch, Seed: 7, Shuffle: true, Ranks: 2}
	e, err := plan.Epoch(number, planned)
	if err != nil {
		c.t.Fatal(err)
	}
	var wg sync.WaitGroup
	for rank := range 2 {
		wg.Go(func() {
			for pos := range e.Len(rank) {
				c.sample(rank, e.At(rank, pos))
			}
		})
	}
	wg.Wait()
}

// sample reads a file and works on it.
func (c *camp) sample(node, i int) {
	f, err := os.Open(c.node(fmt.Sprint(node), "data", "set", plannedName(i)))
	if err != nil {
		c.t.Error(err)
		return
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != plannedText(i) {
		c.t.Errorf("node %d, %s: %d bytes, %v", node, plannedName(i), len(b), err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		c.t.Error(err)
	}
	work := make([]byte, 256<<10)
	for range 2 {
		sum := sha256.Sum256(work)
		copy(work, sum[:])
	}
}
