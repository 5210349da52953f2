package testcluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

var file = metadata.New{Mode: syscall.S_IFREG | 0o644, UID: 1000, GID: 1000}

// epochOf returns the epoch in which dir was spread, by its home's record.
func (c *Cluster) epochOf(dir metadata.Ino) metadata.Epoch {
	return c.Nodes[dir.Home()].Meta().(interface {
		Epoch(metadata.Ino) metadata.Epoch
	}).Epoch(dir)
}

func (c *Cluster) mkdir(t testing.TB, name string) metadata.Ino {
	t.Helper()
	a, err := c.Nodes[1].Client.Mkdir(context.Background(), metadata.RootIno, name, metadata.New{Mode: 0o755})
	if err != nil {
		t.Fatal(err)
	}
	return a.Ino
}

// listAll lists dir in pages of page entries; a name listed twice is an error.
func listAll(ctx context.Context, c *fsclient.Client, dir metadata.Ino, page int) (map[string]metadata.Ino, error) {
	names := make(map[string]metadata.Ino)
	l, after := c.List(dir), ""
	for {
		es, end, err := l.Read(ctx, after, page)
		if err != nil {
			return nil, err
		}
		for _, e := range es {
			if _, ok := names[e.Name]; ok {
				return nil, fmt.Errorf("%q is listed twice", e.Name)
			}
			names[e.Name] = e.Ino
			after = e.Name
		}
		if end {
			return names, nil
		}
	}
}

// TestWideWhileInUse: four nodes create and remove in one directory while it becomes wide. Permanent files are always
// found and listed once; nodes see each other's new files; at the end every created file exists.
func TestWideWhileInUse(t *testing.T) {
	t.Parallel()
	const fixed, perWorker, workers = 150, 220, 8
	c := Start(t, Config{SplitAt: 400})
	ctx := context.Background()
	dir := c.mkdir(t, "d")
	for i := range fixed {
		if _, err := c.Nodes[i%4].Client.Create(ctx, dir, fmt.Sprint("fixed", i), file); err != nil {
			t.Fatal(err)
		}
	}
	var g, watch errgroup.Group
	var mu sync.Mutex
	made := make(map[string]metadata.Ino) // guarded by mu
	for w := range workers {
		g.Go(func() error {
			here, there := c.Nodes[w%4].Client, c.Nodes[(w+1)%4].Client
			for i := range perWorker {
				name := fmt.Sprintf("w%d.%d", w, i)
				a, err := here.Create(ctx, dir, name, file)
				if err != nil {
					return err
				}
				e, err := there.Lookup(ctx, dir, name)
				if err != nil || e.Ino != a.Ino {
					return fmt.Errorf("%q there: %v, %w, made as %v", name, e.Ino, err, a.Ino)
				}
				if i%5 == 0 {
					if _, err := there.Unlink(ctx, dir, name); err != nil {
						return err
					}
					if _, err := here.Lookup(ctx, dir, name); !errors.Is(err, syscall.ENOENT) {
						return fmt.Errorf("%q after its removal: %w", name, err)
					}
					continue
				}
				mu.Lock()
				made[name] = a.Ino
				mu.Unlock()
			}
			return nil
		})
	}
	var done atomic.Bool
	lists := 0
	watch.Go(func() error {
		for ; !done.Load() || lists < 3; lists++ {
			names, err := listAll(ctx, c.Nodes[lists%4].Client, dir, 37)
			if err != nil {
				return err
			}
			for i := range fixed {
				if names[fmt.Sprint("fixed", i)] == 0 {
					return fmt.Errorf("fixed%d is not listed among %d", i, len(names))
				}
			}
		}
		return nil
	})
	watch.Go(func() error {
		for i := 0; !done.Load(); i++ {
			name := fmt.Sprint("fixed", i%fixed)
			if _, err := c.Nodes[i%4].Client.Lookup(ctx, dir, name); err != nil {
				return err
			}
		}
		return nil
	})
	err := g.Wait()
	done.Store(true)
	if err := errors.Join(err, watch.Wait()); err != nil {
		t.Fatal(err)
	}
	// It may have to wait for the leases on the directory to end.
	Eventually(t, "the directory is wide", func() bool { return c.epochOf(dir) != 0 })
	e := c.epochOf(dir)
	t.Logf("%d listings", lists)
	want := len(made) + fixed
	at := make([]int, 4)
	names, err := listAll(ctx, c.Nodes[2].Client, dir, 100)
	if err != nil || len(names) != want {
		t.Fatalf("%d entries are listed, %v, want %d", len(names), err, want)
	}
	for name, ino := range made {
		if names[name] != ino {
			t.Fatalf("%s is listed as %v, and was made as %v", name, names[name], ino)
		}
		at[c.Nodes[0].View().Map.EntryHome(dir, name, e)]++
	}
	for i, n := range at {
		if share := float64(len(made)) / 4; math.Abs(float64(n)-share) > 6*math.Sqrt(share) {
			t.Errorf("node %d has %d of %d entries", i, n, len(made))
		}
	}
}

// TestListingBecomesWide: a listing that began before the split continues at its position.
func TestListingBecomesWide(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{SplitAt: 200})
	ctx := context.Background()
	dir := c.mkdir(t, "d")
	client := c.Nodes[2].Client
	for i := range 150 {
		if _, err := client.Create(ctx, dir, fmt.Sprintf("f%04d", i), file); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[string]int)
	l, after := client.List(dir), ""
	for end := false; !end; {
		es, e, err := l.Read(ctx, after, 40)
		if err != nil {
			t.Fatal(err)
		}
		end = e
		for _, e := range es {
			seen[e.Name]++
			after = e.Name
		}
		for i := 0; c.epochOf(dir) == 0; i++ {
			if _, err := client.Create(ctx, dir, fmt.Sprintf("later%04d", i), file); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 150 {
		if name := fmt.Sprintf("f%04d", i); seen[name] != 1 {
			t.Errorf("%s is listed %d times", name, seen[name])
		}
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s is listed %d times", name, n)
		}
	}
}

// TestSameNames: of many concurrent creates of one name, on all nodes, in directories that are becoming wide, one
// succeeds.
func TestSameNames(t *testing.T) {
	t.Parallel()
	const workers, names = 64, 40
	c := Start(t, Config{SplitAt: 16})
	ctx := context.Background()
	files, dirs := c.mkdir(t, "files"), c.mkdir(t, "dirs")
	var won [2][names]atomic.Int32
	var g errgroup.Group
	for w := range workers {
		client := c.Nodes[w%4].Client
		count := func(n *atomic.Int32, err error) error {
			switch {
			case err == nil:
				n.Add(1)
			case !errors.Is(err, syscall.EEXIST):
				return err
			}
			return nil
		}
		g.Go(func() error {
			for i := range names {
				_, err := client.Create(ctx, files, fmt.Sprint("n", i), file)
				if err := count(&won[0][i], err); err != nil {
					return err
				}
				_, err = client.Mkdir(ctx, dirs, fmt.Sprint("n", i), metadata.New{Mode: 0o755})
				if err := count(&won[1][i], err); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for k := range won {
		for i := range won[k] {
			if n := won[k][i].Load(); n != 1 {
				t.Errorf("%s n%d was made %d times", []string{"file", "directory"}[k], i, n)
			}
		}
	}
	for _, dir := range []metadata.Ino{files, dirs} {
		got, err := listAll(ctx, c.Nodes[3].Client, dir, 7)
		if err != nil || len(got) != names {
			t.Errorf("%d entries are listed, %v, want %d", len(got), err, names)
		}
	}
	if a, err := (settled{Client: c.Nodes[0].Client, c: c, t: t}).Getattr(ctx, dirs); err != nil || a.Nlink != 2+names {
		t.Errorf("the directory of %d directories has %d links, %v", names, a.Nlink, err)
	}
	c.checkTree(t)
}

// TestMkdirStorm: 64 workers concurrently make nested directories, and remove all of them.
func TestMkdirStorm(t *testing.T) {
	t.Parallel()
	const workers, each = 64, 12
	c := Start(t, Config{SplitAt: 128})
	ctx := context.Background()
	top := c.mkdir(t, "top")
	var g errgroup.Group
	for w := range workers {
		client := c.Nodes[w%4].Client
		g.Go(func() error {
			for i := range each {
				name := fmt.Sprintf("d%d.%d", w, i)
				a, err := client.Mkdir(ctx, top, name, metadata.New{Mode: 0o755})
				if err != nil {
					return err
				}
				if _, err := client.Mkdir(ctx, a.Ino, "below", metadata.New{Mode: 0o755}); err != nil {
					return err
				}
				if i%2 == 1 {
					continue
				}
				if err := client.Rmdir(ctx, top, name); !errors.Is(err, syscall.ENOTEMPTY) {
					return fmt.Errorf("rmdir of a full directory: %w", err)
				}
				if err := errors.Join(client.Rmdir(ctx, a.Ino, "below"), client.Rmdir(ctx, top, name)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	got, err := listAll(ctx, c.Nodes[0].Client, top, 100)
	if err != nil || len(got) != workers*each/2 {
		t.Fatalf("%d directories are listed, %v, want %d", len(got), err, workers*each/2)
	}
	client := c.Nodes[3].Client
	if err := client.Rmdir(ctx, metadata.RootIno, "top"); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("rmdir of a wide directory with entries = %v", err)
	}
	for name, ino := range got {
		if err := errors.Join(client.Rmdir(ctx, ino, "below"), client.Rmdir(ctx, top, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.Rmdir(ctx, metadata.RootIno, "top"); err != nil {
		t.Errorf("rmdir of an empty wide directory = %v", err)
	}
	if _, err := c.Nodes[1].Client.Create(ctx, top, "x", file); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Create in a wide directory that is gone = %v", err)
	}
	c.checkTree(t)
}

// TestWideNodeDown: a lost node's part of a directory is EIO at once, and a listing reports the error after all other
// entries; everything works when the node returns.
func TestWideNodeDown(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{SplitAt: 64})
	ctx := context.Background()
	dir := c.mkdir(t, "d")
	home := dir.Home()
	lost, node := (home+1)%4, c.Nodes[(home+2)%4]
	client := node.Client
	for i := range 200 {
		if _, err := client.Create(ctx, dir, fmt.Sprint("f", i), file); err != nil {
			t.Fatal(err)
		}
	}
	Eventually(t, "it is wide", func() bool { return c.epochOf(dir) != 0 })
	if _, err := listAll(ctx, client, dir, 50); err != nil {
		t.Fatal(err)
	}
	e := c.epochOf(dir)
	c.Cut(int(lost))
	Eventually(t, "the node is given up", func() bool {
		n, _ := node.View().Map.Node(lost)
		return n.State == cluster.Down
	})
	var here []string
	m := node.View().Map
	for i := range 400 {
		name := fmt.Sprint("f", i)
		down := m.EntryHome(dir, name, e) == lost
		_, err := client.Lookup(ctx, dir, name)
		switch {
		case down && !errors.Is(err, syscall.EHOSTDOWN), !down && i < 200 && err != nil, !down && i >= 200 && !errors.Is(err, syscall.ENOENT):
			t.Fatalf("Lookup(%s), down %v = %v", name, down, err)
		case !down && i < 200:
			here = append(here, name)
		case !down:
			if _, err := client.Create(ctx, dir, name, file); err != nil {
				t.Fatal(err)
			}
			here = append(here, name)
		}
	}
	var got []string
	l, after := client.List(dir), ""
	for {
		es, end, err := l.Read(ctx, after, 50)
		if errors.Is(err, syscall.EHOSTDOWN) {
			break
		}
		if err != nil || end {
			t.Fatalf("the listing ends with %v after %d entries, want EHOSTDOWN", err, len(got))
		}
		for _, e := range es {
			got, after = append(got, e.Name), e.Name
		}
	}
	slices.Sort(got)
	slices.Sort(here)
	if !slices.Equal(got, here) {
		t.Errorf("%d entries are listed, want %d", len(got), len(here))
	}
	if err := client.Rmdir(ctx, metadata.RootIno, "d"); err == nil {
		t.Error("a directory was removed of which a part is away")
	}
	c.Mend(int(lost))
	Eventually(t, "the node is back", func() bool {
		n, _ := node.View().Map.Node(lost)
		return n.State == cluster.Up
	})
	Eventually(t, "all is listed", func() bool {
		names, err := listAll(ctx, client, dir, 50)
		return err == nil && len(names) >= len(here)+20
	})
}

// TestWideSetgid: new entries of a wide setgid directory get its group, on every node, also right after a change of
// it.
func TestWideSetgid(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{SplitAt: 64})
	ctx := context.Background()
	dir := c.mkdir(t, "d")
	for i := range 100 {
		if _, err := c.Nodes[i%4].Client.Create(ctx, dir, fmt.Sprint("f", i), file); err != nil {
			t.Fatal(err)
		}
	}
	Eventually(t, "it is wide", func() bool { return c.epochOf(dir) != 0 })
	for _, gid := range []uint32{4000, 5000} {
		ch := metadata.Change{Set: metadata.SetMode | metadata.SetGID, Mode: 0o2775, GID: gid}
		if _, err := c.Nodes[gid/1000%4].Client.Setattr(ctx, dir, ch); err != nil {
			t.Fatal(err)
		}
		for i := range 40 {
			client := c.Nodes[i%4].Client
			a, err := client.Create(ctx, dir, fmt.Sprintf("g%d.%d", gid, i), file)
			if err != nil || a.GID != gid {
				t.Fatalf("a new file has group %d, %v, want %d", a.GID, err, gid)
			}
			a, err = client.Mkdir(ctx, dir, fmt.Sprintf("d%d.%d", gid, i), metadata.New{Mode: 0o755, UID: 1000, GID: 1000})
			if err != nil || a.GID != gid || a.Mode&syscall.S_ISGID == 0 {
				t.Fatalf("a new directory has group %d, mode %o, %v, want %d", a.GID, a.Mode, err, gid)
			}
		}
	}
}

// TestWideKilled: a daemon, the home's or another, is killed while a directory becomes wide, and restarted. Every
// acknowledged file exists once.
func TestWideKilled(t *testing.T) {
	t.Parallel()
	for _, away := range []metadata.NodeID{0, 1, 2} {
		t.Run(fmt.Sprintf("home+%d", away), func(t *testing.T) { wideKilled(t, away) })
	}
}

func wideKilled(t *testing.T, away metadata.NodeID) {
	const workers = 6
	c := Start(t, Config{SplitAt: 300})
	dir := c.mkdir(t, "d")
	victim := (dir.Home() + away) % 4
	var live []*Node
	for _, n := range c.Nodes {
		if n.Job.Self != victim {
			live = append(live, n)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex
	made, maybe := map[string]bool{}, map[string]bool{} // guarded by mu
	var g errgroup.Group
	enough := make(chan struct{})
	var once sync.Once
	for w := range workers {
		client := live[w%len(live)].Client
		g.Go(func() error {
			tick := time.NewTicker(5 * time.Millisecond) // at the end each node looks up all names
			defer tick.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				if i > 300/workers {
					<-tick.C
				}
				name := fmt.Sprintf("w%d.%d", w, i)
				_, err := client.Create(ctx, dir, name, file)
				mu.Lock()
				if err == nil {
					made[name] = true
				} else {
					maybe[name] = true
				}
				n := len(made)
				mu.Unlock()
				if n == 300 {
					once.Do(func() { close(enough) })
				}
				if errors.Is(err, syscall.EEXIST) {
					return err
				}
			}
			return nil
		})
	}
	<-enough
	c.Kill(t, int(victim))
	c.Revive(t, int(victim))
	live = c.Nodes
	for _, n := range live {
		Eventually(t, "all are up", func() bool { return len(n.View().Map.Up()) == 4 })
	}
	mu.Lock()
	seen := len(made)
	mu.Unlock()
	Eventually(t, "creates go on, and it is wide", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(made) > seen+200 && c.epochOf(dir) != 0
	})
	cancel()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, n := range live {
		names, err := listAll(context.Background(), n.Client, dir, 100)
		if err != nil {
			t.Fatal(err)
		}
		for name := range made {
			if names[name] == 0 {
				t.Fatalf("%s was made and is not listed, of %d", name, len(made))
			}
		}
		for name, ino := range names {
			if !made[name] && !maybe[name] {
				t.Fatalf("%s is listed, and nobody made it", name)
			}
			if e, err := n.Client.Lookup(context.Background(), dir, name); err != nil || e.Ino != ino {
				t.Fatalf("%s is listed as %v, and looked up as %v, %v", name, ino, e.Ino, err)
			}
		}
	}
	c.checkTree(t)
}

// TestWideCalls: an operation on one entry of a wide directory is one call, and a listing is one per thousand entries
// and node.
func TestWideCalls(t *testing.T) {
	t.Parallel()
	const n = 2500
	c := Start(t, Config{SplitAt: 300})
	ctx := context.Background()
	dir := c.mkdir(t, "d")
	client := c.Nodes[(dir.Home()+1)%4].Client
	for i := range 300 {
		if _, err := client.Create(ctx, dir, fmt.Sprint("early", i), file); err != nil {
			t.Fatal(err)
		}
	}
	Eventually(t, "it is wide", func() bool { return c.epochOf(dir) != 0 })
	for i := range 20 { // the first remote one returns the placement
		if _, err := client.Lookup(ctx, dir, fmt.Sprint("early", i)); err != nil {
			t.Fatal(err)
		}
	}
	calls := func(what string, most int64, fn func() error) {
		t.Helper()
		count := func() int64 {
			s := client.Stats()
			return s.MetaLocal + s.MetaRemote
		}
		before := count()
		if err := fn(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n := count() - before; n > most {
			t.Errorf("%s took %d calls, want at most %d", what, n, most)
		}
	}
	for i := range n {
		name := fmt.Sprint("f", i)
		calls("create", 1, func() error {
			_, err := client.Create(ctx, dir, name, file)
			return err
		})
		if i%50 == 0 {
			calls("lookup", 1, func() error {
				_, err := client.Lookup(ctx, dir, name)
				return err
			})
		}
	}
	calls("listing", n/1000+1+4, func() error {
		_, err := listAll(ctx, client, dir, 1024)
		return err
	})
	small := c.mkdir(t, "small")
	for i := range 40 {
		if _, err := client.Create(ctx, small, fmt.Sprint("f", i), file); err != nil {
			t.Fatal(err)
		}
	}
	calls("listing of a small directory", 1, func() error {
		_, err := listAll(ctx, client, small, 1024)
		return err
	})
}
