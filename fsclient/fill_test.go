package fsclient_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// countingStore has limited space, and counts bytes instead of storing them.
type countingStore struct {
	datapath.Store

	mu      sync.Mutex
	free    int64                  // under mu
	arrived map[metadata.Ino]int64 // under mu
}

func (s *countingStore) WriteAt(_ context.Context, ino metadata.Ino, p []byte, _ int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int64(len(p)) > s.free {
		return syscall.ENOSPC
	}
	s.free -= int64(len(p))
	s.arrived[ino] += int64(len(p))
	return nil
}

func (s *countingStore) Space(context.Context) (datapath.Space, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return datapath.Space{Capacity: 1 << 40, Free: s.free}, nil
}

func (s *countingStore) of(ino metadata.Ino) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arrived[ino]
}

// TestWritersFill: clients of several nodes fill up one node. The write that finds no
// space returns ENOSPC: all acknowledged bytes are stored.
func TestWritersFill(t *testing.T) {
	const nodes, room, size = 8, 1280 << 20, 256 << 10
	for name, put := range map[string]func(w *fsclient.Writer, p []byte, off int64) (int, error){
		"writes":  func(w *fsclient.Writer, p []byte, off int64) (int, error) { return w.WriteAt(ctx, p, off) },
		"appends": func(w *fsclient.Writer, p []byte, _ int64) (int, error) { return w.Append(ctx, p) },
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, nodes)
			full := &countingStore{Store: j.data[0], free: room, arrived: make(map[metadata.Ino]int64)}
			j.data[0] = full
			var fs [nodes]*fsclient.File
			var ws [nodes]*fsclient.Writer
			var acked [nodes]int64
			cs := fillers(t, j)
			for i, c := range cs {
				fs[i] = onNode(t, c, fmt.Sprint("f", i), 0)
				ws[i] = fs[i].Writer()
			}
			p := make([]byte, size)
			for left := nodes; left > 0; {
				for i, w := range ws {
					if w == nil {
						continue
					}
					n, err := put(w, p, acked[i])
					acked[i] += int64(n)
					if err != nil {
						if !errors.Is(err, syscall.ENOSPC) {
							t.Fatal(err)
						}
						ws[i] = nil
						left--
					}
				}
			}
			for i, f := range fs {
				if err := f.Close(ctx); err != nil {
					t.Error(err)
				}
				if got := full.of(f.Ino()); got != acked[i] {
					t.Errorf("node %d: %d bytes are stored, %d were acknowledged", i, got, acked[i])
				}
				if s := cs[i].Stats(); s.Buffered == 0 {
					t.Errorf("node %d has buffered nothing", i)
				}
			}
		})
	}
}

// fillers returns a client on each node with a stopped clock: a node is asked for its free space again only when that
// space is claimed.
func fillers(t *testing.T, j *job) (cs []*fsclient.Client) {
	t.Helper()
	start := time.Now()
	for id := range j.data {
		c, err := fsclient.New(fsclient.Config{
			Self: metadata.NodeID(id), Local: j.meta[id], LocalData: j.data[id],
			Meta: func(id metadata.NodeID) metadata.NodeStore { return j.meta[id] },
			Data: func(id metadata.NodeID) datapath.Store { return j.data[id] },
			View: func() cluster.View { return *j.view.Load() },
			Now:  func() time.Time { return start },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		cs = append(cs, c)
	}
	return cs
}
