package local

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

const planned = 1600 // files

func plannedName(i int) string { return fmt.Sprintf("%04d", i) }
func plannedText(i int) string { return strings.Repeat(plannedName(i), 500+i%1000) }

// TestPlanPrefetch: with an access plan, a rank on each node finds the other node's samples in the page cache or in
// the daemon's memory in every epoch, through covers and kernel views.
func TestPlanPrefetch(t *testing.T) {
	for _, view := range []string{"off", "auto"} {
		t.Run(view, func(t *testing.T) {
			t.Parallel()
			needRoot(t)
			c := pitch(t, "2", "--kernel-view", view)
			c.stagePlanned(view)
			c.ok("plan", "set", "set", "seed:7,ranks=2", "--dir", c.dir)
			count := func(metric string) float64 { return c.metric("0", metric) + c.metric("1", metric) }
			const reads = `bivouac_rpc_requests_total{op="read"}`
			var before, ahead float64
			for e := range 3 {
				if e > 0 { // the first reads show the positions of the ranks
					before, ahead = count(reads), count("bivouac_prefetched_files_total")
				}
				c.epoch(e, false)
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

// TestCachedEpochs: ranks whose reads the kernel serves from its cache are tracked through all epochs, without
// Python, and pages in the kernel's cache are not fetched again.
func TestCachedEpochs(t *testing.T) {
	for _, view := range []string{"off", "auto"} {
		t.Run(view, func(t *testing.T) {
			t.Parallel()
			needRoot(t)
			c := pitch(t, "2", "--kernel-view", view)
			c.stagePlanned(view)
			c.epoch(9, true) // before a plan exists
			c.ok("plan", "set", "set", "seed:7,ranks=2", "--dir", c.dir)
			eventually(t, "both nodes have the plan", func() bool {
				return c.training("0").Plan != nil && c.training("1").Plan != nil
			})
			for e := range 3 {
				c.epoch(e, true)
				eventually(t, fmt.Sprintf("status and report have epoch %d", e), func() bool {
					s := c.training("0")
					at := func(r accessplan.RankState) bool {
						return r.Epoch > e || r.Epoch == e && r.Position >= planned/2*3/4
					}
					return s.State != nil && len(s.State.Ranks) == 2 && at(s.State.Ranks[0]) && at(s.State.Ranks[1]) &&
						len(s.Epochs) > 0 && s.Epochs[len(s.Epochs)-1].Epoch >= e
				})
			}
			if out := c.ok("report", "--dir", c.dir); !regexp.MustCompile(`(?m)^  [23] +\d`).MatchString(out) {
				t.Errorf("the report has no epoch 2:\n%s", out)
			}
			c.ok("down", "--dir", c.dir)
		})
	}
}

// stagePlanned stages a dataset, and waits until it is mounted on both nodes.
func (c *camp) stagePlanned(view string) {
	c.t.Helper()
	src := mkdir(c.t, c.path("set"))
	for i := range planned {
		write(c.t, filepath.Join(src, plannedName(i)), []byte(plannedText(i)))
	}
	c.ok("stage-in", src, "--dir", c.dir)
	if view == "off" {
		c.covered("set")
		return
	}
	needViews(c.t)
	c.awaitViews("set", "2")
}

// training returns a node's knowledge of the reads of the only dataset.
func (c *camp) training(node string) daemon.TrainingStatus {
	if s := c.status(node).Datasets[0].Training; s != nil {
		return *s
	}
	return daemon.TrainingStatus{}
}

// epoch has a rank on each node read an epoch of DistributedSampler(seed=7). It drops the pages unless keep is set.
func (c *camp) epoch(number int, keep bool) {
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
				c.sample(rank, e.At(rank, pos), keep)
			}
		})
	}
	wg.Wait()
}

// sample reads a file and works on it.
func (c *camp) sample(node, i int, keep bool) {
	f, err := os.Open(c.node(fmt.Sprint(node), "data", "set", plannedName(i)))
	if err != nil {
		c.t.Error(err)
		return
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != plannedText(i) {
		c.t.Errorf("node %d, %s: %d bytes, %v", node, plannedName(i), len(b), err)
	}
	if keep {
		return
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
