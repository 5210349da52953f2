package testcluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/fsclient/prefetch"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

const (
	trainRanks = 2
	trainFiles = 2400
	trainBatch = 16
)

func sampleName(i int) string    { return fmt.Sprintf("%05d.jpg", i) }
func sampleContent(i int) []byte { return bytes.Repeat([]byte(sampleName(i)), 200+i%300) }

// training is a job of two nodes with a dataset, the access plan of each node's engine, and a rank on each node.
type training struct {
	t       *testing.T
	c       *Cluster
	files   int
	content func(i int) []byte
	order   accessplan.Plan // the order in which the ranks read
	ms      []*Mounted
	engines []*prefetch.Engine
}

func startTraining(t *testing.T, plan accessplan.Plan) *training {
	t.Helper()
	NeedFUSE(t)
	files := make(map[string][]byte)
	for i := range trainFiles {
		files[sampleName(i)] = sampleContent(i)
	}
	tree := filepath.Join(t.TempDir(), "tree")
	writeTree(t, tree, files)
	x := &training{
		t: t, files: trainFiles, content: sampleContent,
		order: accessplan.Plan{Dataset: "set", Kind: accessplan.Torch, Seed: 7, Shuffle: true, Ranks: trainRanks},
	}
	x.start(Config{Datasets: []job.Dataset{{Source: tree, Name: "set"}}}, plan)
	return x
}

// start starts the job and gives the plan to each node's engine.
func (x *training) start(cfg Config, plan accessplan.Plan) {
	t := x.t
	t.Helper()
	cfg.Nodes = trainRanks
	x.c = Start(t, cfg)
	ds := x.c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	for _, n := range x.c.Nodes {
		Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
		store, _ := n.Table(ds.ID)
		e := prefetch.NewEngine(prefetch.EngineConfig{
			Client: n.Client, Files: store.(accessplan.Files), Budget: 64 << 20, Log: n.log, Now: time.Now,
			Plan: func() (*accessplan.Plan, <-chan struct{}) { return &plan, nil },
		})
		n.Prefetch = func(metadata.DatasetID) mount.Prefetch { return e }
		x.engines = append(x.engines, e)
		wg.Go(func() { e.Run(ctx) })
	}
	x.ms = x.c.Mount(t)
}

// epoch has each rank read one epoch with two alternating workers through its mount, and drops the page cache.
func (x *training) epoch(number int) {
	x.t.Helper()
	e, err := x.order.Epoch(number, x.files)
	if err != nil {
		x.t.Fatal(err)
	}
	var ranks sync.WaitGroup
	for rank := range trainRanks {
		ranks.Go(func() {
			const workers = 2
			var batches [workers]chan int // the batches of each worker
			done := make(chan struct{}, 2*workers)
			var wg sync.WaitGroup
			for k := range batches {
				batches[k] = make(chan int, workers)
				wg.Go(func() {
					for b := range batches[k] {
						for pos := b * trainBatch; pos < min((b+1)*trainBatch, e.Len(rank)); pos++ {
							x.read(rank, e.At(rank, pos))
						}
						done <- struct{}{}
					}
				})
			}
			for b := range (e.Len(rank) + trainBatch - 1) / trainBatch {
				if b >= 2*workers {
					<-done
				}
				batches[b%workers] <- b
			}
			for k := range batches {
				close(batches[k])
			}
			wg.Wait()
		})
	}
	ranks.Wait()
}

// read reads a sample and decodes it.
func (x *training) read(rank, i int) {
	f, err := os.Open(filepath.Join(x.ms[rank].Data, "set", sampleName(i)))
	if err != nil {
		x.t.Error(err)
		return
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(b, x.content(i)) {
		x.t.Errorf("rank %d, %s: %d bytes, %v", rank, sampleName(i), len(b), err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		x.t.Error(err)
	}
	work := make([]byte, 64<<10)
	for range 4 {
		sum := sha256.Sum256(work)
		copy(work, sum[:])
	}
}

// served returns the single and batched reads that the nodes served each other.
func (x *training) served() (single, batched int64) {
	for _, n := range x.c.Nodes {
		s := n.Status(context.Background()).RPC.Requests
		single, batched = single+s[wire.OpRead], batched+s[wire.OpReadMany]
	}
	return single, batched
}

// TestPrefetchOfEpochs: with the plan, most remote samples arrive in batches before they are read, in every epoch,
// and their bytes are right.
func TestPrefetchOfEpochs(t *testing.T) {
	x := startTraining(t, accessplan.Plan{Dataset: "set", Kind: accessplan.Torch, Seed: 7, Shuffle: true, Ranks: trainRanks})
	for e := range 3 {
		single, batched := x.served()
		x.epoch(e)
		s, b := x.served()
		t.Logf("epoch %d: %d reads of single files, %d batches; %+v", e, s-single, b-batched, x.engines[0].State())
		if e > 0 && s-single > trainFiles/2/4 { // half of the files are on the other node
			t.Errorf("epoch %d: %d files of the other node were read one by one, in %d batches others", e, s-single, b-batched)
		}
	}
	for i, e := range x.engines {
		if s := e.State(); s.Phase != accessplan.Following || s.Epoch < 2 || s.HitRate < 0.5 || len(s.Ranks) != 1 || s.Ranks[0].Rank != i {
			t.Errorf("node %d: %+v", i, s)
		}
	}
}

// TestPrefetchWrongSeed: a plan that the script does not follow becomes stale, and nothing more is prefetched.
func TestPrefetchWrongSeed(t *testing.T) {
	x := startTraining(t, accessplan.Plan{Dataset: "set", Kind: accessplan.Torch, Seed: 1000, Shuffle: true, Ranks: trainRanks})
	for e := range 3 {
		x.epoch(e)
	}
	for i, e := range x.engines {
		if s := e.State(); s.Phase != accessplan.Stale || s.Reason != prefetch.OtherOrder || s.Memory != 0 {
			t.Errorf("node %d: %+v", i, s)
		}
	}
	if _, batched := x.served(); batched > 20 {
		t.Errorf("%d batches were fetched for a plan that is stale", batched)
	}
}
