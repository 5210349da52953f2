package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// background lists the ops that belong to no operation of a user.
var background = map[wire.Op]bool{
	wire.OpReport: true, wire.OpPropose: true, wire.OpStatus: true, wire.OpClosed: true, wire.OpRecall: true,
	wire.OpRemoveObjects: true, wire.OpOutcome: true,
}

// calls returns the number of calls that node i has made to other nodes for users.
func (c *Cluster) calls(i int) int64 {
	var n int64
	for op, k := range c.Nodes[i].Peers().Stats().Calls {
		if !background[op] {
			n += k
		}
	}
	return n
}

// total returns the calls of all nodes.
func (c *Cluster) total() (n int64) {
	for i := range c.Nodes {
		n += c.calls(i)
	}
	return n
}

// away makes a directory whose home is not the node user, and returns its inode as user sees it.
func (c *Cluster) away(ctx context.Context, t *testing.T, user int) metadata.Ino {
	t.Helper()
	for i := range 100 {
		maker := c.Nodes[(user+1)%len(c.Nodes)].Client
		a, err := maker.Mkdir(ctx, metadata.RootIno, fmt.Sprintf("away%d", i), metadata.New{Mode: 0o755})
		if err != nil {
			t.Fatal(err)
		}
		if int(a.Ino.Home()) != user {
			return a.Ino
		}
	}
	t.Fatal("no directory is on another node")
	return 0
}

// TestCallsOfOperations: each operation on names costs the calling node a fixed number of calls; the called nodes
// make none.
func TestCallsOfOperations(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	const user, n = 1, 50
	cl := c.Nodes[user].Client
	dir := c.away(ctx, t, user)
	name := func(i int) string { return fmt.Sprintf("f%d", i) }
	for _, op := range []struct {
		name string
		most int64 // calls per operation
		do   func(i int) error
	}{
		{"lookup of what is not there", 1, func(i int) error { _, _ = cl.Lookup(ctx, dir, name(i)); return nil }},
		{"create", 1, func(i int) error {
			f, _, err := cl.CreateOpen(ctx, dir, name(i), metadata.New{Mode: 0o100644})
			if err != nil {
				return err
			}
			return f.Close(ctx)
		}},
		{"lookup", 1, func(i int) error { _, err := cl.Lookup(ctx, dir, name(i)); return err }},
		{"getattr", 1, func(i int) error { _, err := cl.Getattr(ctx, dir); return err }},
		{"open", 2, func(i int) error { // with the lookup
			e, err := cl.Lookup(ctx, dir, name(i))
			if err != nil {
				return err
			}
			f, err := cl.Open(ctx, e.Ino)
			if err != nil {
				return err
			}
			return f.Close(ctx)
		}},
		{"rename", 3, func(i int) error {
			_, err := cl.Rename(ctx, metadata.Rename{Dir: dir, Name: name(i), NewDir: dir, NewName: name(i) + "x"})
			return err
		}},
		{"unlink", 1, func(i int) error { _, err := cl.Unlink(ctx, dir, name(i)+"x"); return err }},
	} {
		before := c.total()
		for i := range n {
			if err := op.do(i); err != nil {
				t.Fatalf("%s: %v", op.name, err)
			}
		}
		if got := c.total() - before; got > op.most*n {
			t.Errorf("%d of %s: %d calls, want at most %d", n, op.name, got, op.most*n)
		}
	}
}

// TestCallsAfterOwnChanges: a node that looks at a remote file after its own changes to it pays only for the changes.
func TestCallsAfterOwnChanges(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	const user, n = 1, 50
	cl := c.Nodes[user].Client
	dir := c.away(ctx, t, user)
	ino, err := cl.Create(ctx, dir, "f", metadata.New{Mode: 0o100644})
	if err != nil {
		t.Fatal(err)
	}
	looked := func(mode uint32) {
		t.Helper()
		if e, _, err := cl.LookupLeased(ctx, dir, "f"); err != nil || e.Mode&0o777 != mode {
			t.Fatalf("lookup: mode %o, %v, want %o", e.Mode, err, mode)
		}
	}
	looked(0o644)
	looked(0o644)
	before := c.calls(user)
	for i := range uint32(n) {
		if _, err := cl.Setattr(ctx, ino.Ino, metadata.Change{Set: metadata.SetMode, Mode: 0o600 + i%8}); err != nil {
			t.Fatal(err)
		}
		looked(0o600 + i%8)
	}
	if got := c.calls(user) - before; got > n*3/2 { // a lease may end
		t.Errorf("%d changes and lookups: %d calls", n, got)
	}
	before = c.calls(user)
	for i := range n {
		if err := appendOnce(ctx, cl, ino.Ino, i); err != nil {
			t.Fatal(err)
		}
		looked(0o600 + (n-1)%8)
	}
	if got := c.calls(user) - before; got > n*7/2 { // two for the append, one for its bytes
		t.Errorf("%d appends, each with its open and close: %d calls", n, got)
	}
	for i := range uint32(n) { // changes of another node in between are seen
		if _, err := c.Nodes[2].Client.Setattr(ctx, ino.Ino, metadata.Change{Set: metadata.SetMode, Mode: 0o640 + i%8}); err != nil {
			t.Fatal(err)
		}
		looked(0o640 + i%8)
		if _, err := cl.Setattr(ctx, ino.Ino, metadata.Change{Set: metadata.MtimeNow}); err != nil {
			t.Fatal(err)
		}
		looked(0o640 + i%8)
	}
}

// appendOnce opens a file of i bytes, appends one more, and closes it.
func appendOnce(ctx context.Context, cl *fsclient.Client, ino metadata.Ino, i int) error {
	f, err := cl.Open(ctx, ino)
	if err != nil {
		return err
	}
	_, err = f.Append(ctx, []byte{byte(i)})
	if size := f.Attr().Size; err == nil && size != int64(i+1) {
		err = fmt.Errorf("%d bytes after %d appends", size, i+1)
	}
	return errors.Join(err, f.Close(ctx))
}

// TestCallsOfListings: a listing with attributes costs one call per thousand entries.
func TestCallsOfListings(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	const user, n = 1, 2500
	cl := c.Nodes[user].Client
	dir := c.away(ctx, t, user)
	home := c.Nodes[dir.Home()].Client
	for i := range n {
		if _, err := home.Create(ctx, dir, fmt.Sprintf("f%d", i), metadata.New{Mode: 0o100644}); err != nil {
			t.Fatal(err)
		}
	}
	before := c.total()
	got := 0
	for after := ""; ; {
		es, err := cl.ReadDir(ctx, dir, after, 1024)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			if e.Attr == nil {
				t.Fatalf("entry %q has no attributes", e.Name)
			}
		}
		got += len(es)
		if len(es) < 1024 {
			break
		}
		after = es[len(es)-1].Name
	}
	if calls := c.total() - before; got != n || calls > n/1000+1 {
		t.Errorf("%d entries by %d calls, want %d by %d", got, calls, n, n/1000+1)
	}
}

// TestCallsThroughMount: through a mount, a path of unchanged directories costs no call, and a new file costs at most
// a lookup and a create.
func TestCallsThroughMount(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ms := c.Mount(t, 1, 2)
	there, here := ms[1].Scratch, ms[0].Scratch
	dir := ""
	for i := 0; dir == ""; i++ {
		d := fmt.Sprintf("d%d", i)
		if err := os.Mkdir(filepath.Join(there, d), 0o755); err != nil {
			t.Fatal(err)
		}
		fi, err := stat(filepath.Join(there, d))
		if err != nil {
			t.Fatal(err)
		}
		if metadata.Ino(fi.Sys().(*syscall.Stat_t).Ino).Home() != 1 {
			dir = filepath.Join(here, d)
		}
	}
	make := func(i int) error {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("f%d", i)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return f.Close()
	}
	i := 0
	Eventually(t, "five files by ten calls", func() bool { // a lease that just ended costs a call
		keep(t, c.Nodes[1], dir)
		before := c.calls(1)
		for range 5 {
			if err := make(i); err != nil {
				t.Fatal(err)
			}
			i++
		}
		return c.calls(1)-before <= 2*5
	})
}
