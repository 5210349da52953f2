package soak

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"testing"
	"time"
)

// checkpointer saves numbered checkpoints on one node, by write, fsync and rename, and loads the last on others.
type checkpointer struct {
	j     *testJob
	node  int
	rng   *rand.Rand
	dir   string // in scratch
	saved uint32 // the last acknowledged one
	tried uint32 // the last
}

func newCheckpointer(t *testing.T, j *testJob, node int, rng *rand.Rand) *checkpointer {
	t.Helper()
	c := &checkpointer{j: j, node: node, rng: rng, dir: fmt.Sprint("ckpt", node)}
	if err := os.Mkdir(j.scratch(node, c.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if node%2 == 1 {
		twoCopies(t, j.scratch(node, c.dir))
	}
	return c
}

// checkpointOf returns the content of a checkpoint. Its size differs from the previous one's.
func checkpointOf(node int, n uint32) []byte {
	r := rand.New(rand.NewPCG(uint64(node), uint64(n)))
	b := binary.LittleEndian.AppendUint32(nil, n)
	for range 8000 + r.IntN(20_000) {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b
}

// step saves one checkpoint and loads the last one on another node.
func (c *checkpointer) step() {
	c.tried++
	n := c.tried
	if c.j.try(operation{fmt.Sprintf("checkpoint %d on node %d", n, c.node), &c.node, false, true, func() error { return c.save(n) }}) {
		c.saved = n
	}
	at := c.j.living()[c.rng.IntN(len(c.j.living()))]
	if c.saved > 0 && at != c.node {
		var b []byte
		if c.j.try(operation{fmt.Sprintf("load on node %d of the checkpoint of node %d", at, c.node), &at, true, true, func() (err error) {
			b, err = os.ReadFile(c.j.scratch(at, path.Join(c.dir, "last")))
			return err
		}}) {
			c.compare(at, b)
		}
	}
	time.Sleep(time.Duration(c.rng.IntN(100)) * time.Millisecond) // simulates computing
}

func (c *checkpointer) save(n uint32) error {
	from := c.j.scratch(c.node, path.Join(c.dir, "new"))
	f, err := os.Create(from)
	if err != nil {
		return err
	}
	_, err = f.Write(checkpointOf(c.node, n))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(from, c.j.scratch(c.node, path.Join(c.dir, "last")))
}

// compare checks that b is, in full, the last acknowledged checkpoint or a later unacknowledged one.
func (c *checkpointer) compare(at int, b []byte) {
	if len(b) < 4 {
		c.j.found(&c.j.verdict.lost, "load on node %d: the checkpoint of node %d has %d bytes, %d is acknowledged", at, c.node, len(b), c.saved)
		return
	}
	n := binary.LittleEndian.Uint32(b)
	if n < c.saved || n > c.tried {
		c.j.found(&c.j.verdict.lost, "load on node %d: checkpoint %d of node %d, %d is acknowledged and %d was tried", at, n, c.node, c.saved, c.tried)
	} else if !bytes.Equal(b, checkpointOf(c.node, n)) {
		c.j.found(&c.j.verdict.wrong, "load on node %d: checkpoint %d of node %d has %d bytes, other than were written", at, n, c.node, len(b))
	}
}

// verify loads the last checkpoint on every node.
func (c *checkpointer) verify() {
	c.j.t.Helper()
	for _, i := range c.j.living() {
		b, err := os.ReadFile(c.j.scratch(i, path.Join(c.dir, "last")))
		if errors.Is(err, os.ErrNotExist) && c.saved == 0 {
			continue
		}
		if err != nil {
			c.j.found(&c.j.verdict.lost, "load on node %d of the checkpoint of node %d: %v", i, c.node, err)
			continue
		}
		c.compare(i, b)
	}
}
