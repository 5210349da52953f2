package testcluster

import (
	"bytes"
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// TestScratchChecksums: bits flip on the drive of one daemon. No reader on any node gets a wrong byte, status counts
// the blocks, and rewritten data can be read.
func TestScratchChecksums(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := t.Context()
	const piece, pieces = 64 << 10, 64
	data := make([]byte, piece*pieces)
	for i := range data {
		data[i] = byte(i*7 + i>>8*13 + i>>16*31 + 1)
	}
	f, a, err := c.Nodes[0].Client.CreateOpen(ctx, metadata.RootIno, "f", metadata.New{
		Mode: 0o100644, Layout: metadata.Layout{ChunkSize: 1 << 18},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(ctx, data, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(ctx); err != nil {
		t.Fatal(err)
	}
	const sick = 2
	if !c.Nodes[sick].flipAll(t) {
		t.Fatal("the node has no object")
	}
	failed := 0
	for _, n := range c.Nodes {
		failed += n.readPieces(ctx, t, a.Ino, data, piece)
	}
	if want := pieces / len(c.Nodes) * len(c.Nodes); failed != want {
		t.Errorf("%d reads failed, want %d: those of the pieces on the node", failed, want)
	}
	for i, n := range c.Nodes {
		if got := n.Status(ctx).Corrupt; (got > 0) != (i == sick) {
			t.Errorf("node %d counts %d corrupt blocks", i, got)
		}
	}
	f, err = c.Nodes[1].Client.Open(ctx, a.Ino)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(ctx, data, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if n := c.Nodes[3].readPieces(ctx, t, a.Ino, data, piece); n != 0 {
		t.Errorf("%d reads failed after all was written again", n)
	}
}

// readPieces reads a file and returns the number of failed reads. A wrong byte fails the test.
func (n *Node) readPieces(ctx context.Context, t *testing.T, ino metadata.Ino, want []byte, piece int) (failed int) {
	t.Helper()
	f, err := n.Client.Open(ctx, ino)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close(ctx) }()
	for off := 0; off < len(want); off += piece {
		b := make([]byte, piece)
		k, err := f.Read(ctx, b, int64(off), fsclient.ReadOpts{})
		switch {
		case errors.Is(err, syscall.EIO):
			failed++
		case err != nil || k != piece || !bytes.Equal(b, want[off:off+piece]):
			t.Errorf("read of %d bytes at %d = %d, %v, or other bytes", piece, off, k, err)
		}
	}
	return failed
}

// flipAll flips a bit in each block of the node's objects.
func (n *Node) flipAll(t *testing.T) (any bool) {
	t.Helper()
	for _, path := range n.objectFiles(t) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for at := 100; at < len(b); at += 4096 {
			b[at] ^= 4
			any = true
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return any
}
