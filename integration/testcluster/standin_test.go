package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// tree is the acknowledged content below a directory with two copies.
type tree struct {
	root  metadata.Ino
	dirs  map[string]metadata.Ino
	files map[string]map[string][]byte // by directory
}

// growTree makes directories below root on each node, with files from each node, some renamed, some removed.
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

// change has each node make a file in each directory, and remove one.
func (w *tree) change(t *testing.T, nodes []*Node, made, removed string) {
	t.Helper()
	for i, n := range nodes {
		for dir, ino := range w.dirs {
			name, old := fmt.Sprint(made, i), fmt.Sprint(removed, i)
			save(t, n, ino, name, []byte(name))
			w.files[dir][name] = []byte(name)
			if w.files[dir][old] == nil {
				continue
			}
			if _, err := n.Client.Unlink(context.Background(), ino, old); err != nil {
				t.Errorf("unlink of %s: %v", old, err)
			}
			delete(w.files[dir], old)
		}
	}
}

// want checks that node n sees exactly this tree.
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

// holdFile has node a write to and lock a new file of dir that b also has open. The returned function completes this
// after the file's home is lost: the size arrives, and the lock excludes b until a releases it.
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

// TestLostHome: a directory with two copies loses nothing with any one node, including the home of the root; its
// files stay writable. The node returns with its old records, which are not read, or with an empty disk.
func TestLostHome(t *testing.T) {
	t.Parallel()
	for _, lost := range []int{0, 2, 3} {
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
			c.wantServed(t, others, lost, (lost+1)%4)
			w.change(t, others, "new", "kept")
			for i, n := range others {
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
				dirs := c.Nodes[lost].Job.Dirs // a reinstalled machine has no run directory either
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

// wantServed checks that, by the status of all nodes, a node serves the names of another one.
func (c *Cluster) wantServed(t *testing.T, nodes []*Node, home, by int) {
	t.Helper()
	for _, n := range nodes {
		if got := n.Status(context.Background()).Nodes[home].Names; got == nil || got.State != cluster.NamesServed || got.Node != n.Job.Hosts[by] {
			t.Errorf("names of node %d in the status of node %d: %+v, want that node %d serves them", home, n.Job.Self, got, by)
		}
	}
}

// whole waits until, by the status of all nodes, all names and files have two copies.
func (c *Cluster) whole(t *testing.T, nodes []*Node) {
	t.Helper()
	for _, n := range nodes {
		Eventually(t, fmt.Sprintf("node %d sees two copies of all", n.Job.Self), func() bool {
			s := n.Status(context.Background())
			return s.OneCopy == nil && !slices.ContainsFunc(s.Nodes, func(x daemon.NodeStatus) bool { return x.Names == nil || !x.Names.Whole() })
		})
	}
}

// lose waits until an unreachable node is declared lost.
func lose(t *testing.T, nodes []*Node, lost int) {
	t.Helper()
	for _, n := range nodes {
		Eventually(t, fmt.Sprintf("node %d sees node %d down", n.Job.Self, lost), func() bool {
			x, _ := n.View().Map.Node(metadata.NodeID(lost))
			return x.State == cluster.Down
		})
	}
}

// TestLostStandIn: a directory with two copies loses nothing with a node and later with its partner, once status
// reports that everything has two copies again.
func TestLostStandIn(t *testing.T) {
	t.Parallel()
	// The first three nodes run the control plane. Leases are long enough for a busy machine.
	c := Start(t, Config{Nodes: 5, Timing: daemon.Timing{Report: 30 * time.Millisecond, Down: 10 * time.Second, Sweep: 20 * time.Millisecond}})
	w := growTree(t, c, twoCopies(t, c, "tree", "local"))
	left := []*Node{c.Nodes[0], c.Nodes[1], c.Nodes[2], c.Nodes[4]}
	held := holdFile(t, c.Nodes[1], c.Nodes[2], w.dirs["dir3"])
	c.Kill(t, 3)
	lose(t, left, 3)
	c.wantServed(t, left, 3, 4)
	w.change(t, left, "during", "kept")
	c.whole(t, left)
	w.change(t, left, "after", "to-renamed")
	left = c.Nodes[:3]
	c.Kill(t, 4)
	lose(t, left, 4)
	c.wantServed(t, left, 3, 0)
	c.wantServed(t, left, 4, 0)
	held(3)
	w.files["dir3"]["held"] = []byte("held")
	for _, n := range left {
		w.want(t, n, "after both")
	}
	w.change(t, left, "late", "during")
	c.whole(t, left)
	for _, n := range left {
		w.want(t, n, "after more changes")
	}
}
