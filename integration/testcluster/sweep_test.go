package testcluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// gone returns an inode of home that existed and was removed.
func (c *Cluster) gone(t *testing.T, home int, name string) metadata.Ino {
	t.Helper()
	dir, err := c.Nodes[home].Client.Mkdir(t.Context(), metadata.RootIno, name, metadata.New{Mode: 0o755})
	if err != nil || int(dir.Ino.Home()) != home {
		t.Fatalf("mkdir on node %d: %+v, %v", home, dir, err)
	}
	a := put(t, c.Nodes[home], dir.Ino, "f", []byte("x"), metadata.Layout{})
	if _, err := c.Nodes[home].Client.Unlink(t.Context(), dir.Ino, "f"); err != nil {
		t.Fatal(err)
	}
	inodeGone(t, c.Nodes[home], a.Ino)
	return a.Ino
}

// leak makes node i store bytes of an inode, like a late write.
func (c *Cluster) leak(t *testing.T, i int, inos ...metadata.Ino) {
	t.Helper()
	for _, ino := range inos {
		if err := c.Nodes[i].Data().WriteAt(t.Context(), ino, []byte("left over"), 0); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *Cluster) has(i int, ino metadata.Ino) bool {
	var b [1]byte
	n, err := c.Nodes[i].Data().ReadAt(context.Background(), ino, b[:], 0)
	return n == 1 && err == nil
}

// TestSweep: a restarting daemon removes the data of removed files, and so do the others then; all reachable data
// stays, also data that only looks unreachable.
func TestSweep(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	var gone []metadata.Ino
	for i := range c.Nodes {
		gone = append(gone, c.gone(t, i, fmt.Sprint("d", i)))
	}
	want := make([]byte, 9<<20)
	put(t, c.Nodes[1], metadata.RootIno, "kept", want, metadata.Layout{})
	open, a, err := c.Nodes[1].Client.CreateOpen(t.Context(), metadata.RootIno, "open", metadata.New{Mode: 0o100644})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.WriteAt(t.Context(), want, 0); err != nil {
		t.Fatal(err)
	}
	unlink(t, c.Nodes[3], "open")
	strange := metadata.LiveIno(3, 1<<38) // node 3 never had this inode
	before := objects(c.Nodes[2])
	c.leak(t, 2, append(gone, strange)...)
	c.leak(t, 1, gone...)
	half := func() string { return filepath.Join(c.Nodes[2].Job.Dirs.Store[0], "stage", "9", "manifest.new") }
	if err := os.MkdirAll(filepath.Dir(half()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(half(), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Kill(t, 2)
	n := c.Revive(t, 2)
	for i, left := range map[int]int64{1: before, 2: before + 1} {
		Eventually(t, fmt.Sprintf("node %d has removed what nobody needs", i), func() bool { return objects(c.Nodes[i]) == left })
	}
	if s := n.Status(t.Context()).Swept; s.Objects != 4 || s.Files != 1 || s.Waiting != 0 {
		t.Errorf("node 2 has swept %+v, want 4 objects and 1 file", s)
	}
	if _, err := os.Stat(half()); !os.IsNotExist(err) {
		t.Errorf("half a manifest is left: %v", err)
	}
	if !c.has(2, strange) {
		t.Error("an object of an inode that its home does not know yet is gone")
	}
	readsAll(t, "a file without a name", open, want)
	Eventually(t, "a file can be read", func() bool {
		b, err := live(c.Nodes[0], "kept")
		return len(b) == len(want) && err == nil
	})
	closeFile(t, open)
	inodeGone(t, c.Nodes[0], a.Ino)
}

// TestSweepWaits: data whose state only a down node can know is kept until it returns.
func TestSweepWaits(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ino := c.gone(t, 3, "d")
	c.leak(t, 2, ino)
	c.Kill(t, 3)
	Eventually(t, "node 3 is given up", func() bool {
		n, _ := c.Nodes[2].View().Map.Node(3)
		return n.State == cluster.Down
	})
	c.Kill(t, 2)
	n := c.Revive(t, 2)
	Eventually(t, "node 2 has looked", func() bool { return n.Status(t.Context()).Swept.Runs > 1 })
	if s := n.Status(t.Context()).Swept; s.Objects != 0 || s.Waiting != 1 || !c.has(2, ino) {
		t.Errorf("node 2 has swept %+v while node 3 is down, want 1 object waiting", s)
	}
	c.Revive(t, 3)
	Eventually(t, "the object is gone", func() bool { return !c.has(2, ino) })
	Eventually(t, "nothing waits", func() bool { return n.Status(t.Context()).Swept.Waiting == 0 })
}

// TestSweepNameless: inodes without a name on any node are removed with their data when their home restarts; a
// directory that is not empty stays, and so does an inode that is named only on another node.
func TestSweepNameless(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := t.Context()
	var dirs [2]metadata.Attr
	for i := range dirs {
		var err error
		if dirs[i], err = c.Nodes[i].Client.Mkdir(ctx, metadata.RootIno, fmt.Sprint("d", i), metadata.New{Mode: 0o755}); err != nil || int(dirs[i].Ino.Home()) != i {
			t.Fatalf("mkdir on node %d: %+v, %v", i, dirs[i], err)
		}
	}
	lost := put(t, c.Nodes[1], dirs[1].Ino, "lost", make([]byte, 5<<20), metadata.Layout{})
	moved := put(t, c.Nodes[1], dirs[1].Ino, "moved", []byte("moved"), metadata.Layout{})
	if _, err := c.Nodes[2].Client.Rename(ctx, metadata.Rename{Dir: dirs[1].Ino, Name: "moved", NewDir: dirs[0].Ino, NewName: "moved"}); err != nil {
		t.Fatal(err)
	}
	// A link count without a name, and a directory: half of a transaction whose other half is impossible.
	peer := remote.NewStore(c.Nodes[0].Peers().To(1))
	half := func(n uint64, e metadata.Edit) metadata.Vote {
		t.Helper()
		tx := metadata.TxID(metadata.LiveIno(0, 1<<30+n))
		v, err := peer.Prepare(ctx, tx, []metadata.Edit{e})
		if err == nil {
			err = peer.Commit(ctx, tx)
		}
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	half(1, metadata.Edit{Kind: metadata.EditLink, Ino: lost.Ino})
	if _, err := c.Nodes[3].Client.Unlink(ctx, dirs[1].Ino, "lost"); err != nil {
		t.Fatal(err)
	}
	made := &metadata.New{Mode: syscall.S_IFDIR | 0o755}
	empty := half(2, metadata.Edit{Kind: metadata.EditMake, ToDir: dirs[0].Ino, ToName: "x", New: made}).Attr
	full := half(3, metadata.Edit{Kind: metadata.EditMake, ToDir: dirs[0].Ino, ToName: "y", New: made}).Attr
	put(t, c.Nodes[1], full.Ino, "f", []byte("f"), metadata.Layout{})
	if r, err := c.Nodes[2].Home().Check(ctx); err != nil || r.Wrong == 0 {
		t.Fatalf("check before: %+v, %v", r, err)
	}
	c.Kill(t, 1)
	n := c.Revive(t, 1)
	Eventually(t, "what nothing names is gone", func() bool { return n.Status(ctx).Swept.Inodes == 2 })
	inodeGone(t, n, lost.Ino)
	inodeGone(t, n, empty.Ino)
	for _, ino := range []metadata.Ino{moved.Ino, full.Ino, dirs[1].Ino} {
		if _, err := n.Meta().Getattr(ctx, ino); err != nil {
			t.Errorf("inode %v: %v", ino, err)
		}
	}
	Eventually(t, "its data is gone", func() bool {
		return !c.has(0, lost.Ino) && !c.has(1, lost.Ino) && !c.has(2, lost.Ino) && !c.has(3, lost.Ino)
	})
	r, err := c.Nodes[2].Home().Check(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Problems {
		if !strings.Contains(p, full.Ino.String()) {
			t.Errorf("check: %s", p)
		}
	}
}
