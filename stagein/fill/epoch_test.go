package fill_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// pfs is a source that gives a rate to one request after another, on a bubble's clock.
type pfs struct {
	latency time.Duration
	rate    int64
	size    map[string]int64 // by path

	mu   sync.Mutex
	free time.Time // guarded by mu; when it has given all that was asked for
}

func (s *pfs) read(path string) {
	s.mu.Lock()
	now := time.Now()
	if s.free.Before(now) {
		s.free = now
	}
	s.free = s.free.Add(time.Duration(s.size[path]) * time.Second / time.Duration(s.rate))
	over := s.free
	s.mu.Unlock()
	time.Sleep(max(over.Sub(now), s.latency))
}

// lesson is an epoch: each of some ranks has workers that read a batch each, in the order of the files.
type lesson struct {
	paths   []string // in order
	ranks   int
	batch   int
	workers int
	step    time.Duration
	read    func(path string) error
}

// run returns how long all ranks waited for batches.
func (l lesson) run(t *testing.T) (waited time.Duration) {
	const ahead = 2 // batches of a worker
	steps := len(l.paths) / (l.ranks * l.batch)
	ready := make([]sync.WaitGroup, steps)
	begin := make([]chan struct{}, steps) // of a batch that may be read when an earlier one was used
	var wg sync.WaitGroup
	for s := range steps {
		ready[s].Add(l.ranks)
		begin[s] = make(chan struct{})
		if s < ahead*l.workers {
			close(begin[s])
		}
	}
	for r := range l.ranks {
		for w := range l.workers {
			wg.Go(func() {
				for s := w; s < steps; s += l.workers {
					<-begin[s]
					for i := range l.batch {
						if err := l.read(l.paths[(s*l.batch+i)*l.ranks+r]); err != nil {
							t.Error(err)
						}
					}
					ready[s].Done()
				}
			})
		}
	}
	for s := range steps {
		asked := time.Now()
		ready[s].Wait()
		waited += time.Since(asked)
		if k := s + ahead*l.workers; k < steps {
			close(begin[k])
		}
		time.Sleep(l.step)
	}
	wg.Wait()
	return waited
}

// TestEpochDuringFill: a first epoch in the order of the fill, of ranks that need all that the source gives, waits about as
// long as one that reads the source itself. No node falls behind because readers wait for its files.
func TestEpochDuringFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, files = 4, 2048
		s := &pfs{latency: 6 * time.Millisecond, rate: 30e6, size: make(map[string]int64)}
		j := &jobtest.Job{FS: stageintest.NewFS(), Nodes: nodes, Path: "/src/tree", Workers: stagein.DefaultWorkers,
			Target: &stageintest.MemTarget{Discard: true}, Opts: stagein.Options{Fill: stagein.Order{Kind: stagein.OrderSource}}}
		j.FS.Add(j.Path, source.TypeDir|0o755, nil)
		rng, all := rand.New(rand.NewPCG(1, 2)), make([]byte, 128<<10)
		var total int64
		for i := range files {
			path, n := fmt.Sprintf("%s/f%04d", j.Path, i), 16<<10+rng.IntN(112<<10)
			j.FS.Add(path, source.TypeRegular|0o644, all[:n])
			s.size[path] = int64(n)
			total += int64(n)
		}
		j.FS.OnRead = func(path string, _ int64) { s.read(path) }
		fs, inos := fillsOf(t, j)
		l := lesson{ranks: nodes, batch: 32, workers: 2, read: func(path string) error { s.read(path); return nil }}
		for path := range s.size {
			l.paths = append(l.paths, path)
		}
		slices.Sort(l.paths)
		l.step = time.Duration(total) * time.Second / time.Duration(s.rate) / time.Duration(files/(l.ranks*l.batch))
		direct := l.run(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, f := range fs {
			wg.Go(func() { f.Run(ctx, func() {}) })
		}
		l.read = func(path string) error {
			x := inos[path]
			return fs[x.owner].Need(ctx, x.ino, 0, s.size[path])
		}
		during := l.run(t)
		cancel()
		wg.Wait()
		for _, f := range fs {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
		t.Logf("waited %v for batches during the fill, and %v from the source", during, direct)
		if during > 2*direct {
			t.Errorf("waited %v for batches during the fill, want about %v as from the source", during, direct)
		}
	})
}

// placed is where a file is stored.
type placed struct {
	ino   metadata.Ino
	owner metadata.NodeID
}

// fillsOf makes the fills of a job's nodes, and returns where each file belongs.
func fillsOf(t *testing.T, j *jobtest.Job) (fs []*fill.Fill, at map[string]placed) {
	t.Helper()
	m := stageintest.ClusterMap(j.Nodes)
	var records bytes.Buffer
	s, err := scan.Run(t.Context(), &scan.Config{FS: j.FS, Request: stagein.Request{Source: j.Path, Name: "ds", Options: j.Opts}, Dataset: 3, Map: m, Log: stageintest.QuietLog()}, &records)
	if err != nil {
		t.Fatal(err)
	}
	files, err := stageintest.FilesOf(records.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	at = make(map[string]placed)
	for ino, r := range files.ByIno {
		at[j.Path+"/"+r.Path] = placed{ino, r.Attr.Layout.Node}
	}
	dir := t.TempDir()
	for i := range j.Nodes {
		f, err := j.Filler(m, metadata.NodeID(i), s, files, dir)
		if err != nil {
			t.Fatal(err)
		}
		fs = append(fs, f)
	}
	return fs, at
}
