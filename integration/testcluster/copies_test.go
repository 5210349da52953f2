package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// twoCopies makes a directory of node 0 whose files have two copies.
func twoCopies(t *testing.T, c *Cluster, name, layout string) metadata.Ino {
	t.Helper()
	ctx := context.Background()
	d, err := c.Nodes[0].Client.Mkdir(ctx, metadata.RootIno, name, metadata.New{Mode: syscall.S_IFDIR | 0o755})
	if err != nil {
		t.Fatal(err)
	}
	x := metadata.Xattr{Name: fsclient.ReservedXattr + "copies", Value: []byte("2")}
	if err := errors.Join(setLayout(c.Nodes[0], d.Ino, layout), c.Nodes[0].Client.Setxattr(ctx, d.Ino, x)); err != nil {
		t.Fatal(err)
	}
	return d.Ino
}

// save writes a file through node n and closes it.
func save(t *testing.T, n *Node, dir metadata.Ino, name string, data []byte) metadata.Attr {
	t.Helper()
	ctx := context.Background()
	f, a, err := n.Client.CreateOpen(ctx, dir, name, metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	w := f.Writer()
	for off := 0; off < len(data); off += 100_000 {
		if _, err := w.WriteAt(ctx, data[off:min(off+100_000, len(data))], int64(off)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	return a
}

// readsAtOnce checks that a file is read with these bytes and without error.
func readsAtOnce(t *testing.T, n *Node, when string, ino metadata.Ino, want []byte) {
	t.Helper()
	f := openFile(t, n, ino)
	defer closeFile(t, f)
	b := make([]byte, len(want)+1)
	if got, err := f.Read(context.Background(), b, 0, fsclient.ReadOpts{}); err != nil || !bytes.Equal(b[:got], want) {
		t.Errorf("%s, on node %d: %d bytes, %v, want %d, or other bytes", when, n.Job.Self, got, err, len(want))
	}
}

// wantCopies checks the xattr user.bivouac.copies of a file on a node.
func wantCopies(t *testing.T, n *Node, ino metadata.Ino, want string) {
	t.Helper()
	if got, err := n.Client.Getxattr(context.Background(), ino, fsclient.ReservedXattr+"copies"); err != nil || string(got) != want {
		t.Errorf("inode %v on node %d: %q copies, %v, want %q", ino, n.Job.Self, got, err, want)
	}
}

// await waits until the other nodes' maps show node i in state s.
func (c *Cluster) await(t *testing.T, i int, s cluster.State) {
	t.Helper()
	for k, n := range c.Nodes {
		if k == i && s == cluster.Down {
			continue
		}
		Eventually(t, fmt.Sprintf("node %d sees node %d %v", k, i, s), func() bool {
			x, _ := n.View().Map.Node(metadata.NodeID(i))
			return x.State == s
		})
	}
}

// TestLostSwitch: files with two copies lose neither data nor names when all nodes of a leaf switch are lost.
func TestLostSwitch(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 4, Switches: []string{"leaf1", "leaf1", "leaf2", "leaf2"}})
	data := bytes.Repeat([]byte("checkpoint"), 300_000)
	dirs := []metadata.Ino{twoCopies(t, c, "ckpt", "local"), twoCopies(t, c, "striped", "stripe")}
	for i, n := range c.Nodes {
		own, err := n.Client.Mkdir(t.Context(), dirs[0], fmt.Sprint("own", i), metadata.New{Mode: syscall.S_IFDIR | 0o755})
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range append(dirs, own.Ino) {
			save(t, n, dir, fmt.Sprint("f", i), data)
		}
	}
	if s := c.Nodes[0].Status(t.Context()); s.Nodes[1].Switch != "leaf1" || s.Nodes[2].Switch != "leaf2" {
		t.Errorf("the status has the nodes %+v", s.Nodes)
	}
	c.Kill(t, 2)
	c.Kill(t, 3)
	for i := 2; i < 4; i++ {
		for k, n := range c.Nodes[:2] {
			Eventually(t, fmt.Sprintf("node %d sees node %d down", k, i), func() bool {
				x, _ := n.View().Map.Node(metadata.NodeID(i))
				return x.State == cluster.Down
			})
		}
	}
	for i := range c.Nodes {
		for _, path := range []string{"ckpt", "striped", fmt.Sprint("ckpt/own", i)} {
			path = fmt.Sprint(path, "/f", i)
			ino, err := c.Nodes[0].Client.Resolve(t.Context(), metadata.RootIno, path)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			readsAtOnce(t, c.Nodes[1], path, ino, data)
		}
	}
}

// TestCopies: files with two copies survive the loss of any node but the home of their directory. Data written while
// a node is away is read correctly on all nodes after it returns with its old copies.
func TestCopies(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 4})
	ctx := context.Background()
	local, stripe := twoCopies(t, c, "ckpt", "local"), twoCopies(t, c, "striped", "stripe")
	type file struct {
		metadata.Attr
		data []byte
	}
	var files []file
	for i, n := range c.Nodes {
		for _, dir := range []metadata.Ino{local, stripe} {
			data := bytes.Repeat([]byte{byte(1 + i)}, 3<<20+i)
			files = append(files, file{save(t, n, dir, fmt.Sprint("f", i), data), data})
		}
	}
	read := func(when string, nodes ...int) {
		t.Helper()
		for _, i := range nodes {
			for k := range files {
				readsAtOnce(t, c.Nodes[i], fmt.Sprintf("%s: file %d", when, k), files[k].Ino, files[k].data)
			}
		}
	}
	read("before", 0, 1, 2, 3)
	for k := range files {
		wantCopies(t, c.Nodes[k%4], files[k].Ino, "2")
	}

	c.Kill(t, 1)
	read("at the loss", 0, 2, 3) // no reader waits for the new map
	files[2].data = bytes.Repeat([]byte("new"), 1<<20)
	f := openFile(t, c.Nodes[3], files[2].Ino) // node 1 has written the file
	if _, err := f.WriteAt(ctx, files[2].data, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	closeFile(t, f)
	if _, err := c.Nodes[2].Client.Truncate(ctx, files[3].Ino, 1<<20); err != nil {
		t.Fatal(err)
	}
	files[2].data = append(files[2].data, bytes.Repeat([]byte{2}, 1)...) // the end of the old bytes
	files[3].data = files[3].data[:1<<20]
	c.await(t, 1, cluster.Down)
	read("after the loss", 0, 2, 3)
	fresh := save(t, c.Nodes[2], local, "fresh", files[0].data)
	wantCopies(t, c.Nodes[0], fresh.Ino, "2")

	c.Revive(t, 1)
	c.await(t, 1, cluster.Up)
	read("after the return", 0, 1, 2, 3)
	c.restored(t)
	wantCopies(t, c.Nodes[1], files[2].Ino, "2")
	read("restored", 0, 1, 2, 3)
	for i := range 4 {
		for _, dir := range []metadata.Ino{local, stripe} {
			if _, err := c.Nodes[i].Client.Unlink(ctx, dir, fmt.Sprint("f", i)); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := c.Nodes[1].Client.Unlink(ctx, local, "fresh"); err != nil {
		t.Error(err)
	}
	Eventually(t, "no object is left", func() bool {
		r, err := c.Nodes[0].Home().Check(ctx)
		return err == nil && r.Objects == 0 && r.Wrong == 0
	})
}

// TestIsolatedCopy: a node without contact to a leader serves no copies, not even to itself, once the others may have
// newer ones; the others continue to read and write.
func TestIsolatedCopy(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 4})
	ctx := context.Background()
	dir := twoCopies(t, c, "ckpt", "local")
	a := save(t, c.Nodes[3], dir, "f", []byte("old"))
	c.Cut(3)
	c.await(t, 3, cluster.Down)
	f := openFile(t, c.Nodes[1], a.Ino)
	if _, err := f.WriteAt(ctx, []byte("new"), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	closeFile(t, f)
	if n, err := c.Nodes[3].Data().ReadAt(ctx, a.Object(), make([]byte, 3), 0); !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("the isolated node reads its old copy: %d bytes, %v", n, err)
	}
	c.Mend(3)
	c.await(t, 3, cluster.Up)
	for _, n := range c.Nodes {
		readsAtOnce(t, n, "back again", a.Ino, []byte("new"))
	}
}

// restored waits until all running nodes know that all files have two copies again.
func (c *Cluster) restored(t *testing.T, dead ...int) {
	t.Helper()
	for i, n := range c.Nodes {
		if !slices.Contains(dead, i) {
			Eventually(t, fmt.Sprintf("node %d knows that the copies are restored", i), func() bool {
				m := n.View().Map
				return !m.Unrestored() && len(m.Restored) > 0
			})
		}
	}
}

// TestThirdCopy: after a node is lost, every file gets a second copy on another node while it is being written. Then
// another node is lost and the first returns with its old copies; no acknowledged byte is missing.
func TestThirdCopy(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 4})
	ctx := context.Background()
	dirs := []metadata.Ino{twoCopies(t, c, "ckpt", "local"), twoCopies(t, c, "striped", "stripe")}
	type file struct {
		ino  metadata.Ino
		data []byte
	}
	var files []*file
	for i, n := range c.Nodes {
		for k, dir := range dirs {
			data := bytes.Repeat([]byte{byte(1 + i), byte(k)}, 1<<20+i)
			files = append(files, &file{save(t, n, dir, fmt.Sprint("f", i), data).Ino, data})
		}
	}
	read := func(when string, nodes ...int) {
		t.Helper()
		for _, i := range nodes {
			for k, f := range files {
				readsAtOnce(t, c.Nodes[i], fmt.Sprintf("%s: file %d", when, k), f.ino, f.data)
			}
		}
	}
	over := make(chan struct{})
	var wg sync.WaitGroup
	for k, f := range files { // each is overwritten in pieces
		wg.Go(func() {
			w := openFile(t, c.Nodes[k%2], f.ino)
			defer closeFile(t, w)
			for n := byte(0); ; n++ {
				off := int64(n) * 7919 % int64(len(f.data)-100)
				copy(f.data[off:], bytes.Repeat([]byte{n}, 100))
				_, err := w.WriteAt(ctx, f.data[off:off+100], off)
				if err == nil {
					err = w.Sync(ctx)
				}
				if err != nil {
					t.Errorf("file %d: %v", k, err)
				}
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	c.Kill(t, 3)
	c.await(t, 3, cluster.Down)
	c.restored(t, 3)
	close(over)
	wg.Wait()
	for _, f := range files {
		wantCopies(t, c.Nodes[0], f.ino, "2")
	}
	read("restored", 0, 1, 2)

	c.Kill(t, 1)
	read("at the second loss", 0, 2)
	Eventually(t, "the second is given up", func() bool {
		n, _ := c.Nodes[0].View().Map.Node(1)
		return n.State == cluster.Down
	})
	read("after it", 0, 2)
	c.Revive(t, 3)
	Eventually(t, "the first is back", func() bool {
		n, _ := c.Nodes[3].View().Map.Node(3)
		return n.State == cluster.Up
	})
	read("the first is back", 0, 2, 3)
	c.Revive(t, 1)
	c.await(t, 1, cluster.Up)
	c.restored(t)
	read("all are back", 0, 1, 2, 3)
	for i := range 4 {
		for _, dir := range dirs {
			if _, err := c.Nodes[i].Client.Unlink(ctx, dir, fmt.Sprint("f", i)); err != nil {
				t.Error(err)
			}
		}
	}
	Eventually(t, "no object is left", func() bool {
		r, err := c.Nodes[0].Home().Check(ctx)
		return err == nil && r.Objects == 0 && r.Wrong == 0
	})
}
