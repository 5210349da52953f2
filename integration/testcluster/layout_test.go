package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

func setLayout(n *Node, ino metadata.Ino, kind string) error {
	x := metadata.Xattr{Name: fsclient.ReservedXattr + "layout", Value: []byte(kind)}
	return n.Client.Setxattr(context.Background(), ino, x)
}

// TestLayoutOfOpenFile: while a node has an empty file open, no other node can change its layout; after the close,
// one can.
func TestLayoutOfOpenFile(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 3})
	ctx := context.Background()
	f, a, err := c.Nodes[1].Client.CreateOpen(ctx, metadata.RootIno, "f", metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	if err := setLayout(c.Nodes[2], a.Ino, "local"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("layout of a file that is open there = %v, want EBUSY", err)
	}
	closeFile(t, f)
	if err := setLayout(c.Nodes[2], a.Ino, "local"); err != nil {
		t.Fatalf("layout of a closed file = %v", err)
	}
	f = openFile(t, c.Nodes[1], a.Ino)
	want := bytes.Repeat([]byte("x"), 5<<20)
	if _, err := f.WriteAt(ctx, want, 0); err != nil {
		t.Fatal(err)
	}
	closeFile(t, f)
	g := openFile(t, c.Nodes[0], a.Ino)
	readsAll(t, "the file", g, want)
	closeFile(t, g)
	for i, n := range c.Nodes {
		if got, err := n.Data().Allocated(ctx, a.Ino); err != nil || (got > 0) != (i == 2) {
			t.Errorf("node %d has %d bytes, %v; node 2 has set the layout", i, got, err)
		}
	}
	if err := setLayout(c.Nodes[2], a.Ino, "stripe"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("layout of a file with data = %v, want EBUSY", err)
	}
}

// TestLayoutRace: whichever node wins, a file that is written while another node sets its layout keeps all its bytes.
func TestLayoutRace(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 3})
	ctx := context.Background()
	for i := range 20 {
		f, a, err := c.Nodes[0].Client.CreateOpen(ctx, metadata.RootIno, fmt.Sprint("f", i), metadata.New{Mode: syscall.S_IFREG | 0o644})
		if err != nil {
			t.Fatal(err)
		}
		closeFile(t, f)
		want := bytes.Repeat([]byte{byte(i + 1)}, 4<<20)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := setLayout(c.Nodes[2], a.Ino, "local"); err != nil && !errors.Is(err, syscall.EBUSY) {
				t.Errorf("layout = %v", err)
			}
		})
		wg.Go(func() {
			f, err := c.Nodes[1].Client.Open(ctx, a.Ino)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := f.WriteAt(ctx, want, 0); err != nil {
				t.Error(err)
			}
			closeFile(t, f)
		})
		wg.Wait()
		g := openFile(t, c.Nodes[0], a.Ino)
		readsAll(t, "the file", g, want)
		closeFile(t, g)
	}
}

// TestWidth: a scratch file is spread over four of many nodes, unless its directory sets another width, or all nodes.
func TestWidth(t *testing.T) {
	t.Parallel()
	const nodes = 6
	c := Start(t, Config{Nodes: nodes})
	ctx := context.Background()
	n := c.Nodes[1]
	for value, want := range map[string]int{"": metadata.DefaultWidth, "1": 1, "5": 5, "all": nodes, "400": nodes} {
		d, err := n.Client.Mkdir(ctx, metadata.RootIno, "d"+value, metadata.New{Mode: syscall.S_IFDIR | 0o755})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Client.Setxattr(ctx, d.Ino, metadata.Xattr{Name: fsclient.ReservedXattr + "width", Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
		f, a, err := n.Client.CreateOpen(ctx, d.Ino, "f", metadata.New{Mode: syscall.S_IFREG | 0o644})
		if err != nil {
			t.Fatal(err)
		}
		data := bytes.Repeat([]byte("w"), 2*nodes<<20)
		if _, err := f.WriteAt(ctx, data, 0); err != nil {
			t.Fatal(err)
		}
		closeFile(t, f)
		g := openFile(t, c.Nodes[4], a.Ino)
		readsAll(t, "the file", g, data)
		closeFile(t, g)
		holders := 0
		for _, x := range c.Nodes {
			if got, err := x.Data().Allocated(ctx, a.Ino); err == nil && got > 0 {
				holders++
			}
		}
		if holders != want {
			t.Errorf("width %q: %d nodes have data, want %d", value, holders, want)
		}
	}
	for _, bad := range []string{"0", "-1", "many", "70000"} {
		if err := n.Client.Setxattr(ctx, metadata.RootIno, metadata.Xattr{Name: fsclient.ReservedXattr + "width", Value: []byte(bad)}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("width %q: %v, want EINVAL", bad, err)
		}
	}
}
