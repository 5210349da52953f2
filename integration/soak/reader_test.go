package soak

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// setName is the dataset of the job, and setFiles its number of files.
const (
	setName  = "set"
	setFiles = 120
)

// sampleOf returns a file of the dataset; one of forty is large.
func sampleOf(i int) (name string, b []byte) {
	r := rand.New(rand.NewPCG(uint64(i), 17))
	n := 500 + r.IntN(20_000)
	if i%40 == 7 {
		n = 1 << 20
	}
	b = make([]byte, n)
	for k := range b {
		b[k] = byte(r.Uint32())
	}
	return fmt.Sprintf("class%d/img%03d.jpg", i%5, i), b
}

// makeSet writes the source of the dataset.
func makeSet(t *testing.T, dir string) {
	t.Helper()
	for i := range setFiles {
		name, b := sampleOf(i)
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// reader reads files of the dataset on one node, in random order.
type reader struct {
	j    *testJob
	node int
	rng  *rand.Rand
	done int
}

// step reads one file.
func (r *reader) step() {
	name, want := sampleOf(r.rng.IntN(setFiles))
	var b []byte
	damaged := r.j.damaged.Load()
	if r.j.try(operation{fmt.Sprintf("read on node %d of %s", r.node, name), &r.node, true, false, func() (err error) {
		b, err = os.ReadFile(r.j.data(r.node, name))
		return err
	}}) {
		if damaged%2 == 0 && damaged == r.j.damaged.Load() {
			r.compare(name, b, want)
		}
		r.done++
	}
	time.Sleep(time.Duration(r.rng.IntN(40)) * time.Millisecond) // simulates computing
}

// verify reads all files.
func (r *reader) verify() {
	r.j.t.Helper()
	for i := range setFiles {
		name, want := sampleOf(i)
		var b []byte
		r.j.eventually(fmt.Sprintf("read on node %d of %s", r.node, name), func() (err error) {
			b, err = os.ReadFile(r.j.data(r.node, name))
			return err
		})
		r.compare(name, b, want)
	}
}

func (r *reader) compare(name string, b, want []byte) {
	if !bytes.Equal(b, want) {
		r.j.found(&r.j.verdict.wrong, "read on node %d: %s has %d bytes, other than the %d of the source", r.node, name, len(b), len(want))
	}
}

// data returns a path in the dataset on node i.
func (j *testJob) data(i int, path string) string {
	return filepath.Join(j.nodes[i].job.Dirs.Mount, "data", setName, path)
}

// staged waits until the dataset is ready on all nodes.
func (j *testJob) staged() {
	j.t.Helper()
	j.eventually("the dataset is ready", func() error {
		for i := range j.nodes {
			s, err := j.ctl(i).Status(context.Background())
			if err != nil {
				return err
			}
			if len(s.Datasets) != 1 || !s.Datasets[0].Ready {
				return fmt.Errorf("node %d has datasets %+v", i, s.Datasets)
			}
		}
		return nil
	})
}
