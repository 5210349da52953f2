package testcluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// homes makes one directory of the root on each node.
func (c *Cluster) homes(t *testing.T) []metadata.Ino {
	t.Helper()
	var dirs []metadata.Ino
	for i := range c.Nodes {
		dirs = append(dirs, dirOn(t, c, metadata.NodeID(i), fmt.Sprint("home", i)).Ino)
	}
	return dirs
}

// TestRenameBetweenHomes: of the calls for a rename between two homes, the client makes one, or none if it runs on
// the first home.
func TestRenameBetweenHomes(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 3})
	ctx := context.Background()
	d := c.homes(t)
	for user, want := range []int64{3, 2, 3} {
		name := fmt.Sprint("f", user)
		put(t, c.Nodes[1], d[1], name, []byte("x"), metadata.Layout{})
		before := c.total()
		if _, err := c.Nodes[user].Client.Rename(ctx, metadata.Rename{Dir: d[1], Name: name, NewDir: d[2], NewName: "g"}); err != nil {
			t.Fatal(err)
		}
		if n := c.total() - before; n > want {
			t.Errorf("a rename by node %d took %d calls, want %d", user, n, want)
		}
		if s := c.Nodes[1].Home().Transactions(); s.Prepares != int64(user)+1 || s.Commits != s.Prepares {
			t.Errorf("the coordinator counts %+v", s)
		}
	}
	c.Check(t)
}

// TestOppositeMoves: if two nodes concurrently move two directories into each other, one of them gets the error for a
// loop.
func TestOppositeMoves(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 3})
	ctx := context.Background()
	d := c.homes(t)
	for i := range 10 {
		var sub [2]metadata.Ino
		for k := range sub {
			a, err := c.Nodes[0].Client.Mkdir(ctx, d[k+1], "top", metadata.New{Mode: 0o755})
			if err == nil {
				a, err = c.Nodes[0].Client.Mkdir(ctx, a.Ino, "sub", metadata.New{Mode: 0o755})
			}
			if err != nil {
				t.Fatal(err)
			}
			sub[k] = a.Ino
		}
		var errs [2]error
		var wg sync.WaitGroup
		for k := range errs {
			wg.Go(func() {
				_, errs[k] = c.Nodes[k+1].Client.Rename(ctx, metadata.Rename{Dir: d[k+1], Name: "top", NewDir: sub[1-k], NewName: "in"})
			})
		}
		wg.Wait()
		if errors.Is(errs[0], syscall.EINVAL) == errors.Is(errs[1], syscall.EINVAL) || errs[0] != nil && errs[1] != nil {
			t.Fatalf("round %d: %v and %v, want one to succeed and one to be EINVAL", i, errs[0], errs[1])
		}
		c.Check(t)
		for k := range d[1:] {
			_, err := c.Nodes[0].Client.Rename(ctx, metadata.Rename{Dir: d[k+1], Name: "top", NewDir: d[0], NewName: fmt.Sprint("done", i)})
			if err != nil && !errors.Is(err, syscall.ENOENT) {
				t.Fatal(err)
			}
		}
	}
}

// traveller is a file that is moved between directories and must not be lost: after an error it has its old name or
// its new one.
type traveller struct {
	ino   metadata.Ino
	where [][2]any // possible names: directory and name
}

// TestNodesDieAtWork: nodes are killed and links cut while others rename, link, make and remove the same names. When
// all nodes have returned, the tree is consistent and has all acknowledged files.
func TestNodesDieAtWork(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := Start(t, Config{})
	d := c.homes(t)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var wg sync.WaitGroup
	files := make([]traveller, 3)
	for i := range files {
		name := fmt.Sprint("traveller", i)
		a := put(t, c.Nodes[0], d[0], name, []byte("x"), metadata.Layout{})
		files[i] = traveller{a.Ino, [][2]any{{d[0], name}}}
		wg.Go(func() { c.travel(ctx, &files[i], d, name, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	for i := range 3 {
		rng := rand.New(rand.NewPCG(seed, uint64(100+i)))
		wg.Go(func() { c.disturb(ctx, d, rng) })
	}
	for _, i := range []int{1, 2, 3, 1} {
		c.while(t, 300*time.Millisecond)
		c.Kill(t, i)
		c.while(t, 200*time.Millisecond)
		c.Revive(t, i)
		c.while(t, 200*time.Millisecond)
		c.Cut(i%3 + 1)
		c.while(t, 100*time.Millisecond)
		c.Mend(i%3 + 1)
	}
	stop()
	wg.Wait()
	for i, n := range c.Nodes {
		up, cancel := context.WithTimeout(context.Background(), Patience)
		if err := n.WaitUp(up); err != nil {
			t.Fatalf("node %d: %v", i, err)
		}
		cancel()
	}
	c.Check(t)
	for i, f := range files {
		found := 0
		for _, w := range f.where {
			e, err := c.Nodes[0].Client.Lookup(context.Background(), w[0].(metadata.Ino), w[1].(string))
			if err == nil && e.Ino == f.ino {
				found++
			}
		}
		if found != 1 {
			t.Errorf("file %d has %d of the names that it can have, want 1: %v", i, found, f.where)
		}
	}
}

// while lets the others work for d.
func (c *Cluster) while(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// travel moves a file around through the client of node 0.
func (c *Cluster) travel(ctx context.Context, f *traveller, dirs []metadata.Ino, name string, rng *rand.Rand) {
	client := c.Nodes[0].Client
	for n := 0; ctx.Err() == nil; n++ {
		var at *[2]any
		for i, w := range f.where {
			one, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			e, err := client.Lookup(one, w[0].(metadata.Ino), w[1].(string))
			cancel()
			if err == nil && e.Ino == f.ino {
				at = &f.where[i]
			}
		}
		if at == nil { // on a node that is down
			continue
		}
		to := [2]any{dirs[rng.IntN(len(dirs))], fmt.Sprint(name, "-", n)}
		r := metadata.Rename{Dir: at[0].(metadata.Ino), Name: at[1].(string), NewDir: to[0].(metadata.Ino), NewName: to[1].(string)}
		one, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := client.Rename(one, r)
		cancel()
		if err == nil {
			f.where = [][2]any{to}
		} else {
			f.where = append(f.where, to)
		}
	}
}

// disturb applies random operations to a few names, and ignores errors.
func (c *Cluster) disturb(ctx context.Context, dirs []metadata.Ino, rng *rand.Rand) {
	client := c.Nodes[0].Client
	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		from, to := dirs[rng.IntN(len(dirs))], dirs[rng.IntN(len(dirs))]
		name, other := fmt.Sprint("n", rng.IntN(4)), fmt.Sprint("n", rng.IntN(4))
		switch rng.IntN(7) {
		case 0:
			_, _ = client.Create(one, from, name, metadata.New{Mode: syscall.S_IFREG | 0o644})
		case 1:
			_, _ = client.Mkdir(one, from, name, metadata.New{Mode: 0o755})
		case 2:
			_, _ = client.Unlink(one, from, name)
		case 3:
			_ = client.Rmdir(one, from, name)
		case 4:
			if e, err := client.Lookup(one, from, name); err == nil {
				_, _ = client.Link(one, e.Ino, to, other)
			}
		default:
			flags := []metadata.RenameFlags{0, metadata.RenameNoReplace, metadata.RenameExchange}[rng.IntN(3)]
			_, _ = client.Rename(one, metadata.Rename{Dir: from, Name: name, NewDir: to, NewName: other, Flags: flags})
		}
		cancel()
	}
}
