package testcluster

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestRemoveWhatIsLost: rm removes files that lost bytes with a node, and names of lost files and directories; until
// then they are EIO. The node's own part is removed when it returns.
func TestRemoveWhatIsLost(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	m := c.Mount(t, 0)[0]
	ctx := context.Background()
	dir, err := c.Nodes[2].Client.Mkdir(ctx, metadata.RootIno, "dir", metadata.New{Mode: 0o755, UID: 1000, GID: 1000})
	if err != nil || dir.Ino.Home() != 2 {
		t.Fatalf("mkdir: %+v, %v", dir, err)
	}
	put(t, c.Nodes[2], dir.Ino, "in", []byte("in"), metadata.Layout{})
	far := put(t, c.Nodes[2], dir.Ino, "far", make([]byte, 5<<20), metadata.Layout{})
	if _, err := c.Nodes[0].Client.Rename(ctx, metadata.Rename{Dir: dir.Ino, Name: "far", NewDir: metadata.RootIno, NewName: "far"}); err != nil {
		t.Fatal(err)
	}
	near := put(t, c.Nodes[0], metadata.RootIno, "near", bytes.Repeat([]byte("n"), 8<<20), metadata.Layout{})
	if near.Ino.Home() != 0 || !c.has(2, near.Ino) || !c.has(1, near.Ino) {
		t.Fatalf("near: %+v", near)
	}
	c.Kill(t, 2)
	Eventually(t, "the node is given up", func() bool {
		n, _ := c.Nodes[0].View().Map.Node(2)
		return n.State == cluster.Down
	})
	for _, name := range []string{"near", "far"} {
		if b, err := os.ReadFile(filepath.Join(m.Scratch, name)); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %d bytes, %v, want EIO", name, len(b), err)
		}
	}
	if info, err := os.Lstat(filepath.Join(m.Scratch, "far")); !errors.Is(err, syscall.EIO) {
		t.Errorf("stat of a file that is lost: %v, %v, want EIO", info, err)
	}
	if es, err := os.ReadDir(filepath.Join(m.Scratch, "dir")); !errors.Is(err, syscall.EIO) {
		t.Errorf("a directory that is lost: %d entries, %v, want EIO", len(es), err)
	}
	for _, name := range []string{"near", "far", "dir"} {
		if out, err := exec.Command("rm", "-rf", filepath.Join(m.Scratch, name)).CombinedOutput(); err != nil {
			t.Errorf("rm -rf %s: %v: %s", name, err, out)
		}
	}
	if es, err := os.ReadDir(m.Scratch); err != nil || len(es) > 0 {
		t.Errorf("%d names are left, %v", len(es), err)
	}
	Eventually(t, "the room is free", func() bool { return !c.has(0, near.Ino) && !c.has(1, near.Ino) && !c.has(3, near.Ino) })
	n := c.Revive(t, 2)
	Eventually(t, "what nothing names is gone", func() bool { return n.Status(ctx).Swept.Inodes == 1 })
	inodeGone(t, n, far.Ino)
	for i := range c.Nodes {
		Eventually(t, "its objects are gone", func() bool { return !c.has(i, far.Ino) && !c.has(i, near.Ino) })
	}
}
