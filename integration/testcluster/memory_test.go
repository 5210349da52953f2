package testcluster

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// smallMemory is the memory a server uses for requests without data: one buffer per worker and connection.
const smallMemory = 1 << 20

// TestManyReadersTakeLittle: 64 readers and 16 writers on other nodes use no more of a node's memory than the formula
// allows, and release it.
func TestManyReadersTakeLittle(t *testing.T) {
	c := Start(t, Config{Nodes: 4, Memory: 8 << 20})
	home := c.Nodes[0]
	ctx := context.Background()
	want := bytes.Repeat([]byte("readers "), 1<<20) // 8 MiB
	make0 := func(name string) metadata.Attr {
		a, err := home.Client.Create(ctx, metadata.RootIno, name, metadata.New{
			Mode: syscall.S_IFREG | 0o644, Layout: metadata.Layout{Kind: metadata.Local, Node: 0},
		})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := make0("read")
	if err := home.Client.WriteFile(ctx, a, want, 0); err != nil {
		t.Fatal(err)
	}
	a.Size = int64(len(want))
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			if err := readPieces(c.Nodes[1+i%3].Client, a, want); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 16 {
		b := make0(fmt.Sprint("write", i))
		wg.Go(func() {
			if err := c.Nodes[1+i%3].Client.WriteFile(ctx, b, want, 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	formula := daemon.MemoryOf(home.Job, 8<<20).Serving
	for i, n := range c.Nodes {
		m := n.Status(ctx).RPC.Memory
		if m.Peak > formula+smallMemory {
			t.Errorf("node %d: %d bytes of buffers, want at most %d", i, m.Peak, formula+smallMemory)
		}
		if i == 0 && m.Peak < formula/2 {
			t.Errorf("node 0 took %d bytes: the readers did not need what there is", m.Peak)
		}
	}
	c.wantNoBuffers(t)
}

// readPieces reads the file in pieces of 1 MiB.
func readPieces(client *fsclient.Client, a metadata.Attr, want []byte) error {
	p := make([]byte, 1<<20)
	for off := 0; off < len(want); off += len(p) {
		n, err := client.ReadFile(context.Background(), a, p, int64(off))
		if err != nil || !bytes.Equal(p[:n], want[off:off+len(p)]) {
			return fmt.Errorf("%d bytes at %d: %w", n, off, err)
		}
	}
	return nil
}

// wantNoBuffers waits until no node holds memory for requests of others, other than that of periodic reports.
func (c *Cluster) wantNoBuffers(t *testing.T) {
	t.Helper()
	for i, n := range c.Nodes {
		Eventually(t, fmt.Sprintf("node %d gives its buffers back", i), func() bool {
			m := n.Status(context.Background()).RPC.Memory
			return m.Out == 0 && m.InUse == 0
		})
	}
}
