package fill_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
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

// pfs is a source of limited bandwidth that serves one request after another, on the clock of a synctest bubble.
type pfs struct {
	latency time.Duration
	rate    int64

	mu   sync.Mutex
	free time.Time // guarded by mu; when it has served all requests so far
}

func (s *pfs) read(n int64) {
	s.mu.Lock()
	now := time.Now()
	if s.free.Before(now) {
		s.free = now
	}
	s.free = s.free.Add(time.Duration(n) * time.Second / time.Duration(s.rate))
	over := s.free
	s.mu.Unlock()
	time.Sleep(max(over.Sub(now), s.latency))
}

// lesson is an epoch: each rank has several workers; each worker reads one batch at a time, in the order of the files.
type lesson struct {
	paths   []string // in the order in which they are read
	ranks   int
	batch   int
	workers int
	step    time.Duration
	read    func(path string) error
}

// run returns how long all ranks together waited for batches.
func (l lesson) run(t *testing.T) (waited time.Duration) {
	const ahead = 2 // batches that a worker reads ahead
	steps := len(l.paths) / (l.ranks * l.batch)
	ready := make([]sync.WaitGroup, steps)
	begin := make([]chan struct{}, steps) // closed when an earlier batch was used, so that this one may be read
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

// TestEpochDuringFill: ranks that need the full bandwidth of the source read a dataset during its stage-in, in the
// order of the fill or in an order unknown to it. They wait little longer for batches than ranks that read the source
// directly: no node falls behind because readers wait for its files, and read-ahead hardly delays demand reads.
func TestEpochDuringFill(t *testing.T) {
	for _, tt := range []struct {
		name, order string
		tar         bool
		most        float64 // limit, as a multiple of the wait when reading from the source
	}{
		{"in the order of the fill", stagein.OrderSource, false, 2},
		{"in another order", stagein.OrderShuffled, false, 4},
		{"in another order than that of a tar", stagein.OrderShuffled, true, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				during, direct := epochDuringFill(t, tt.order, tt.tar)
				t.Logf("waited %v for batches during the fill, and %v from the source", during, direct)
				if float64(during) > tt.most*float64(direct) {
					t.Errorf("waited %v for batches during the fill, want at most %.0f times the %v from the source", during, tt.most, direct)
				}
			})
		})
	}
}

// epochDuringFill returns how long ranks wait for batches when they read a dataset during its stage-in, and when they
// read from the source.
func epochDuringFill(t *testing.T, order string, inTar bool) (during, direct time.Duration) {
	const nodes, files = 4, 2048
	s := &pfs{latency: 6 * time.Millisecond, rate: 30e6}
	j := &jobtest.Job{FS: stageintest.NewFS(), Nodes: nodes, Path: "/src/set", Workers: stagein.DefaultWorkers,
		Target: &stageintest.MemTarget{Discard: true}, Opts: stagein.Options{Fill: stagein.Order{Kind: order}}}
	rng, all := rand.New(rand.NewPCG(1, 2)), make([]byte, 128<<10)
	var total int64
	l := lesson{ranks: nodes, batch: 32, workers: 2}
	size := make(map[string]int64)
	var members []stageintest.Member
	for i := range files {
		name, n := fmt.Sprintf("f%04d", i), 16<<10+rng.IntN(112<<10)
		j.FS.Add(j.Path+"/"+name, source.TypeRegular|0o644, all[:n])
		members = append(members, stageintest.Member{Header: tar.Header{Name: name, Typeflag: tar.TypeReg}, Data: all[:n]})
		l.paths, size[name] = append(l.paths, name), int64(n)
		total += int64(n)
	}
	if j.FS.Add(j.Path, source.TypeDir|0o755, nil); inTar {
		j.Path, j.Swarm = "/src/set.tar", jobtest.NewSwarm(j)
		j.FS.Add(j.Path, source.TypeRegular|0o644, stageintest.WriteTar(t, tar.FormatUSTAR, members))
	}
	fs, at := fillsOf(t, j)
	j.FS.OnBytes = s.read
	l.step = time.Duration(total) * time.Second / time.Duration(s.rate) / time.Duration(files/(l.ranks*l.batch))
	l.read = func(name string) error { s.read(size[name]); return nil }
	direct = l.run(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(func() { f.Run(ctx, func() {}) })
	}
	l.read = func(name string) error {
		defer time.Sleep(hop)
		return fs[at[name].owner].Need(ctx, at[name].ino, 0, size[name])
	}
	during = l.run(t)
	cancel()
	wg.Wait()
	for _, f := range fs {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	return during, direct
}

// hop is the time to send a file from its owner to its reader.
const hop = 5 * time.Millisecond

// placed is the place where a file is stored.
type placed struct {
	ino   metadata.Ino
	owner metadata.NodeID
}

// fillsOf creates the fills of a job's nodes and returns the place of each file.
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
		at[r.Path] = placed{ino, r.Attr.Layout.Node}
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
