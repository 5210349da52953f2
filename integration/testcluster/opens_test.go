package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

func openFile(t *testing.T, n *Node, ino metadata.Ino) *fsclient.File {
	t.Helper()
	f, err := n.Client.Open(context.Background(), ino)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func closeFile(t *testing.T, f *fsclient.File) {
	t.Helper()
	if err := f.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func unlink(t *testing.T, n *Node, name string) {
	t.Helper()
	if _, err := n.Client.Unlink(context.Background(), metadata.RootIno, name); err != nil {
		t.Fatal(err)
	}
}

// readsAll waits until f can be read, and checks its content.
func readsAll(t *testing.T, what string, f *fsclient.File, want []byte) {
	t.Helper()
	b := make([]byte, len(want)+1)
	n := 0
	Eventually(t, what+" is read", func() (ok bool) {
		var err error
		n, err = f.Read(context.Background(), b, 0, fsclient.ReadOpts{})
		return err == nil
	})
	if !bytes.Equal(b[:n], want) {
		t.Errorf("%s: %d bytes, want %d, or other bytes", what, n, len(want))
	}
}

// spaceBack waits until no node stores any file data.
func (c *Cluster) spaceBack(t *testing.T) {
	t.Helper()
	for i, n := range c.Nodes {
		Eventually(t, fmt.Sprintf("the space of node %d is back", i), func() bool {
			s, err := n.Data().Space(context.Background())
			return err == nil && s.Used == 0 && s.Objects == 0
		})
	}
}

func inodeGone(t *testing.T, home *Node, ino metadata.Ino) {
	t.Helper()
	Eventually(t, "the inode is gone", func() bool {
		_, err := home.Meta().Getattr(context.Background(), ino)
		return errors.Is(err, syscall.ENOENT)
	})
}

// TestOpenUnlinked: an unlinked file stays usable on all nodes that have it open, and its space is freed with the
// last close.
func TestOpenUnlinked(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	want := bytes.Repeat([]byte("temporary"), 700_000)
	a := put(t, c.Nodes[1], metadata.RootIno, "f", want, metadata.Layout{})
	f, g := openFile(t, c.Nodes[2], a.Ino), openFile(t, c.Nodes[3], a.Ino)
	unlink(t, c.Nodes[1], "f")
	closeFile(t, openFile(t, c.Nodes[2], a.Ino)) // as by /proc/self/fd
	readsAll(t, "node 2", f, want)
	if _, err := g.WriteAt(ctx, []byte("more"), int64(len(want))); err != nil {
		t.Fatal(err)
	}
	if err := g.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Nodes[2].Client.Getattr(ctx, a.Ino); err != nil || got.Nlink != 0 || got.Size != int64(len(want))+4 {
		t.Errorf("Getattr = %+v, %v", got, err)
	}
	if _, err := c.Nodes[2].Client.Truncate(ctx, a.Ino, 10); err != nil {
		t.Error(err)
	}
	if got, err := c.Nodes[3].Client.Getattr(ctx, a.Ino); err != nil || got.Size != 10 {
		t.Errorf("Getattr after a truncate elsewhere = %+v, %v", got, err)
	}
	readsAll(t, "node 3", g, want[:10])
	closeFile(t, f)
	readsAll(t, "node 3", g, want[:10])
	closeFile(t, g)
	inodeGone(t, c.Nodes[a.Ino.Home()], a.Ino)
	c.spaceBack(t)
}

// TestHomeRestarts: a home that restarts keeps the unlinked files that a node has open, and removes the others.
func TestHomeRestarts(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	want := bytes.Repeat([]byte("temporary"), 500_000)
	held := put(t, c.Nodes[1], metadata.RootIno, "held", want, metadata.Layout{})
	loose := put(t, c.Nodes[1], metadata.RootIno, "loose", want, metadata.Layout{})
	named := put(t, c.Nodes[1], metadata.RootIno, "named", want, metadata.Layout{})
	f, h, g := openFile(t, c.Nodes[2], held.Ino), openFile(t, c.Nodes[3], loose.Ino), openFile(t, c.Nodes[3], named.Ino)
	unlink(t, c.Nodes[2], "held")
	unlink(t, c.Nodes[2], "loose")
	c.Kill(t, 0)
	closeFile(t, h) // the home is unreachable
	home := c.Revive(t, 0)
	inodeGone(t, home, loose.Ino)
	readsAll(t, "the file without a name", f, want)
	Eventually(t, "a file is unlinked", func() bool {
		_, err := c.Nodes[1].Client.Unlink(ctx, metadata.RootIno, "named")
		return err == nil
	})
	readsAll(t, "the file that lost its name later", g, want)
	closeFile(t, f)
	closeFile(t, g)
	inodeGone(t, home, held.Ino)
	inodeGone(t, home, named.Ino)
	c.spaceBack(t)
}

// TestHolderDies: an orphan that a lost node had open counts as closed once the map shows the node as down, or when
// the node restarts.
func TestHolderDies(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	for _, revive := range []bool{true, false} {
		f, a, err := c.Nodes[3].Client.CreateOpen(ctx, metadata.RootIno, "f", metadata.New{Mode: 0o100644})
		if err != nil {
			t.Fatal(err)
		}
		// The node dies before it reports these bytes.
		if _, err := f.WriteAt(ctx, make([]byte, 7<<20), 0); err != nil {
			t.Fatal(err)
		}
		unlink(t, c.Nodes[1], "f")
		if _, err := c.Nodes[0].Meta().Getattr(ctx, a.Ino); err != nil {
			t.Fatalf("a file that is open: %v", err)
		}
		c.Kill(t, 3)
		if revive {
			c.Revive(t, 3)
			inodeGone(t, c.Nodes[0], a.Ino)
			c.spaceBack(t)
			continue
		}
		// Its own part of the data returns with it.
		Eventually(t, "node 3 is given up", func() bool {
			n, _ := c.Nodes[0].View().Map.Node(3)
			return n.State == cluster.Down
		})
		for _, n := range c.Nodes[:3] {
			Eventually(t, "the space is back", func() bool { return objects(n) == 0 })
		}
		c.Revive(t, 3)
		inodeGone(t, c.Nodes[0], a.Ino)
		c.spaceBack(t)
	}
}

// TestWriterAndHomeDie: a writer dies before it has reported its file's size, and then the home that knew of the open
// dies. Removing the file later still removes all its data.
func TestWriterAndHomeDie(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	f, a, err := c.Nodes[3].Client.CreateOpen(t.Context(), metadata.RootIno, "f", metadata.New{Mode: 0o100644})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(t.Context(), make([]byte, 7<<20), 0); err != nil {
		t.Fatal(err)
	}
	c.Kill(t, 3)
	c.Revive(t, 3)
	Eventually(t, "the home knows that the file is closed", func() bool { return c.Nodes[0].Home().OpenFiles().Open == 0 })
	c.Kill(t, 0)
	c.Revive(t, 0)
	Eventually(t, "the file is unlinked", func() bool {
		_, err := c.Nodes[1].Client.Unlink(t.Context(), metadata.RootIno, "f")
		return err == nil
	})
	inodeGone(t, c.Nodes[0], a.Ino)
	c.spaceBack(t)
}

// TestHolderIsBack: a node that was declared down and returns with files open is asked again which files it holds
// open.
func TestHolderIsBack(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	a := put(t, c.Nodes[1], metadata.RootIno, "f", []byte("kept"), metadata.Layout{})
	f := openFile(t, c.Nodes[3], a.Ino)
	c.Cut(3)
	Eventually(t, "node 3 is given up", func() bool { return len(c.Nodes[0].View().Map.Up()) == 3 })
	c.Mend(3)
	Eventually(t, "node 3 is back", func() bool { return len(c.Nodes[0].View().Map.Up()) == 4 })
	Eventually(t, "its home knows that it has the file open", func() bool {
		return c.Nodes[0].Home().OpenFiles().Open == 1 && c.Nodes[0].Home().OpenFiles().Awaited == 0
	})
	unlink(t, c.Nodes[1], "f")
	readsAll(t, "the file", f, []byte("kept"))
	if _, err := c.Nodes[0].Meta().Getattr(ctx, a.Ino); err != nil {
		t.Error(err)
	}
	closeFile(t, f)
	inodeGone(t, c.Nodes[0], a.Ino)
	c.spaceBack(t)
}

// TestManyOpen: a client that dies with ten thousand unlinked files open, never closed, leaves nothing behind.
func TestManyOpen(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 2})
	ctx := context.Background()
	const n = 10_000
	for i := range n {
		name := fmt.Sprint("f", i)
		f, _, err := c.Nodes[1].Client.CreateOpen(ctx, metadata.RootIno, name, metadata.New{Mode: 0o100644})
		if err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			if _, err := f.WriteAt(ctx, []byte("x"), 0); err != nil {
				t.Fatal(err)
			}
		}
		unlink(t, c.Nodes[1], name)
	}
	if s := c.Nodes[0].Home().OpenFiles(); s.Open != n || s.Orphans != n {
		t.Errorf("%+v, want %d open", s, n)
	}
	c.Kill(t, 1)
	c.Revive(t, 1)
	Eventually(t, "all is gone", func() bool {
		s := c.Nodes[0].Home().OpenFiles()
		return s.Open == 0 && s.Orphans == 0
	})
	c.spaceBack(t)
}

// TestMapAfterRestarts: only one node at a time may map a file shared and writable, also when its home or the node
// itself restarts.
func TestMapAfterRestarts(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := t.Context()
	_, a, err := c.Nodes[3].Client.CreateToMap(ctx, metadata.RootIno, "f", metadata.New{Mode: 0o100644})
	if err != nil {
		t.Fatal(err)
	}
	mayMap := func(node int) (may bool) {
		Eventually(t, "the home answers", func() bool {
			f, err := c.Nodes[node].Client.OpenToMap(ctx, a.Ino)
			if err != nil {
				return false
			}
			may = f.Maps()
			return f.Close(ctx) == nil
		})
		return may
	}
	if mayMap(1) {
		t.Error("node 1 may map what node 3 has mapped")
	}
	c.Kill(t, 0)
	c.Revive(t, 0)
	if mayMap(1) {
		t.Error("node 1 may map what node 3 has mapped, after the home's restart")
	}
	if !mayMap(3) {
		t.Error("node 3 may not map what it has mapped, after the home's restart")
	}
	c.Kill(t, 3)
	c.Revive(t, 3)
	Eventually(t, "node 1 may map it", func() bool { return mayMap(1) })
}
