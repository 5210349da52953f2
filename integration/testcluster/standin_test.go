package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// tree is what was acknowledged below a directory with two copies.
type tree struct {
	root  metadata.Ino
	dirs  map[string]metadata.Ino
	files map[string]map[string][]byte // by directory
}

// growTree makes directories below root on each node, with files from each node, renamed and removed ones.
func growTree(t *testing.T, c *Cluster, root metadata.Ino) *tree {
	t.Helper()
	ctx := context.Background()
	w := &tree{root, map[string]metadata.Ino{"": root}, map[string]map[string][]byte{"": {}}}
	for i, n := range c.Nodes {
		name := fmt.Sprint("dir", i)
		d, err := n.Client.Mkdir(ctx, root, name, metadata.New{Mode: syscall.S_IFDIR | 0o755})
		if err != nil {
			t.Fatal(err)
		}
		w.dirs[name], w.files[name] = d.Ino, make(map[string][]byte)
	}
	for dir, ino := range w.dirs {
		for i, n := range c.Nodes {
			for _, kind := range []string{"kept", "renamed", "moved", "removed"} {
				name := fmt.Sprint(kind, i)
				data := []byte(dir + name)
				save(t, n, ino, name, data)
				to, todir := name, dir
				var err error
				switch kind {
				case "renamed":
					to = "to-" + name
					_, err = n.Client.Rename(ctx, metadata.Rename{Dir: ino, Name: name, NewDir: ino, NewName: to})
				case "moved":
					to, todir = "from-"+dir+name, fmt.Sprint("dir", (i+1)%len(c.Nodes))
					_, err = n.Client.Rename(ctx, metadata.Rename{Dir: ino, Name: name, NewDir: w.dirs[todir], NewName: to})
				case "removed":
					_, err = n.Client.Unlink(ctx, ino, name)
				}
				if err != nil {
					t.Fatal(err)
				}
				if kind != "removed" {
					w.files[todir][to] = data
				}
			}
		}
	}
	return w
}

// want wants the whole tree as node n sees it, and nothing else.
func (w *tree) want(t *testing.T, n *Node, when string) {
	t.Helper()
	ctx := context.Background()
	for dir := range w.dirs {
		at, err := n.Client.Resolve(ctx, metadata.RootIno, "tree/"+dir)
		if err != nil || at != w.dirs[dir] {
			t.Fatalf("%s: node %d finds %q: %v, %v", when, n.Job.Self, dir, at, err)
		}
		es, err := n.Client.ReadDir(ctx, at, "", 1000)
		if err != nil {
			t.Fatalf("%s: node %d lists %q: %v", when, n.Job.Self, dir, err)
		}
		var got, want []string
		for _, e := range es {
			got = append(got, e.Name)
		}
		for name := range w.files[dir] {
			want = append(want, name)
		}
		if dir == "" {
			for name := range w.dirs {
				want = append(want, name)
			}
			want = slices.DeleteFunc(want, func(s string) bool { return s == "" })
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: node %d lists in %q: %v, want %v", when, n.Job.Self, dir, got, want)
		}
		for name, data := range w.files[dir] {
			e, err := n.Client.Lookup(ctx, at, name)
			if err != nil {
				t.Fatalf("%s: node %d: %s/%s: %v", when, n.Job.Self, dir, name, err)
			}
			if a, err := n.Client.Getattr(ctx, e.Ino); err != nil || a.Size != int64(len(data)) {
				t.Errorf("%s: node %d: %s/%s has %d bytes, %v, want %d", when, n.Job.Self, dir, name, a.Size, err, len(data))
			}
			readsAtOnce(t, n, when, e.Ino, data)
		}
	}
}

// holdFile has node a write to, and lock, a new file of dir that b has open too. The function that it returns ends that
// after the file's home is lost: the size arrives, and the lock excludes b until a gives it back.
func holdFile(t *testing.T, a, b *Node, dir metadata.Ino) func(home int) {
	t.Helper()
	ctx := context.Background()
	f, at, err := a.Client.CreateOpen(ctx, dir, "held", metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	to := f.Writer()
	if _, err := to.WriteAt(ctx, []byte("held"), 0); err != nil {
		t.Fatal(err)
	}
	openFile(t, b, at.Ino)
	wantLock(t, "before the loss", lock(a, at.Ino, lockOf(metadata.WriteLock, 1, 0, 10)), nil)
	return func(home int) {
		t.Helper()
		if int(at.Ino.Home()) != home {
			t.Fatalf("the file is at home on node %d, want %d", at.Ino.Home(), home)
		}
		closed := make(chan error, 1)
		go func() { closed <- to.Flush(ctx) }()
		wantLock(t, "flush while the home is lost", within(t, "flush", closed), nil)
		wantLock(t, "of another node, after the loss", lock(b, at.Ino, lockOf(metadata.WriteLock, 2, 0, 1)), syscall.EAGAIN)
		next := later(ctx, b, at.Ino, lockOf(metadata.WriteLock, 2, 0, 1))
		wantLock(t, "unlock after the loss", lock(a, at.Ino, lockOf(metadata.Unlocked, 1, 0, 10)), nil)
		wantLock(t, "the next one, after the loss", within(t, "lock", next), nil)
		wantLock(t, "its end", lock(b, at.Ino, lockOf(metadata.Unlocked, 2, 0, 1)), nil)
		if err := to.Close(ctx); err != nil {
			t.Errorf("close after the loss: %v", err)
		}
	}
}

// TestLostHome: a directory with two copies loses nothing with any one node, the home of the root among them, and
// its files can be changed as before. The node returns with its old records, or with an empty disk; nothing reads those.
func TestLostHome(t *testing.T) {
	t.Parallel()
	for lost := range 4 {
		t.Run(fmt.Sprint("node", lost), func(t *testing.T) {
			t.Parallel()
			c := Start(t, Config{Nodes: 4})
			ctx := context.Background()
			w := growTree(t, c, twoCopies(t, c, "tree", "local"))
			others := slices.Delete(slices.Clone(c.Nodes), lost, lost+1)
			w.want(t, c.Nodes[lost], "before")
			held := holdFile(t, others[0], others[1], w.dirs[fmt.Sprint("dir", lost)])
			c.Kill(t, lost)
			held(lost)
			w.files[fmt.Sprint("dir", lost)]["held"] = []byte("held")
			c.await(t, lost, cluster.Down)
			for _, n := range others {
				w.want(t, n, "after the loss")
			}
			next := cluster.Names{State: cluster.NamesServed, Node: c.Nodes[(lost+1)%4].Job.Hosts[(lost+1)%4]}
			if got := others[0].Status(ctx).Nodes[lost].Names; got == nil || *got != next {
				t.Errorf("names of node %d in the status: %v, want %v", lost, got, next)
			}
			for i, n := range others {
				for dir, ino := range w.dirs {
					name := fmt.Sprint("new", i)
					save(t, n, ino, name, []byte(name))
					w.files[dir][name] = []byte(name)
					if _, err := n.Client.Unlink(ctx, ino, fmt.Sprint("kept", i)); err != nil {
						t.Errorf("unlink after the loss: %v", err)
					}
					delete(w.files[dir], fmt.Sprint("kept", i))
				}
				name := fmt.Sprint("late", i)
				d, err := n.Client.Mkdir(ctx, w.dirs[fmt.Sprint("dir", lost)], name, metadata.New{Mode: syscall.S_IFDIR | 0o755})
				if err == nil {
					save(t, n, d.Ino, "f", []byte("f"))
					_, err = n.Client.Unlink(ctx, d.Ino, "f")
				}
				if err := errors.Join(err, n.Client.Rmdir(ctx, w.dirs[fmt.Sprint("dir", lost)], name)); err != nil {
					t.Errorf("mkdir and rmdir after the loss: %v", err)
				}
			}
			for _, n := range others {
				w.want(t, n, "after changes")
			}
			Eventually(t, "the tree is right", func() bool {
				r, err := others[0].Home().Check(ctx)
				return err == nil && r.Wrong == 0
			})
			if lost == 3 { // its disk is empty when it returns; a member of the control group keeps its log
				dirs := c.Nodes[lost].Job.Dirs // a machine that was set up anew has no run directory either
				if err := errors.Join(os.RemoveAll(dirs.Store[0]), os.RemoveAll(dirs.Run)); err != nil {
					t.Fatal(err)
				}
			}
			c.Revive(t, lost)
			c.await(t, lost, cluster.Up)
			for _, n := range c.Nodes {
				w.want(t, n, "after the return")
			}
			own := w.dirs[fmt.Sprint("dir", lost)]
			save(t, c.Nodes[lost], own, "back", []byte("back"))
			w.files[fmt.Sprint("dir", lost)]["back"] = []byte("back")
			for _, n := range c.Nodes {
				w.want(t, n, "after a change by the node that returned")
			}
		})
	}
}
