package testcluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/leases"
)

// TestUnchangedTreeCostsNoCalls: another node's tree is listed, looked up, opened, read, and missing names are found
// missing, without a call, also after the first leases would have ended; a change by any node is seen at once.
func TestUnchangedTreeCostsNoCalls(t *testing.T) {
	t.Parallel()
	const n = 50
	c := Start(t, Config{})
	ms := c.Mount(t)
	var dir string
	for i := 0; ; i++ { // until the node is neither its home nor its maker
		name := fmt.Sprint("d", i)
		if err := os.Mkdir(filepath.Join(ms[0].Scratch, name), 0o755); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(ms[1].Scratch, name))
		if err != nil {
			t.Fatal(err)
		}
		if inoOf(st).Home() != 1 {
			dir = name
			break
		}
	}
	made, seen := filepath.Join(ms[0].Scratch, dir), filepath.Join(ms[1].Scratch, dir)
	for i := range n {
		if err := os.WriteFile(filepath.Join(made, fmt.Sprint("f", i)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(ms[0].Scratch, dir+"-unlisted"), 0o755); err != nil {
		t.Fatal(err)
	}
	look := func(want int) {
		t.Helper()
		for i := range n {
			if _, err := os.Lstat(filepath.Join(seen+"-unlisted", fmt.Sprint("missing", i))); !errors.Is(err, syscall.ENOENT) {
				t.Fatalf("stat of a missing name: %v", err)
			}
		}
		es, err := os.ReadDir(seen)
		if err != nil || len(es) != want {
			t.Fatalf("%d entries, %v, want %d", len(es), err, want)
		}
		for _, e := range es[:want/2] {
			if b, err := os.ReadFile(filepath.Join(seen, e.Name())); err != nil || len(b) > 1 {
				t.Fatalf("%q, %v", b, err)
			}
		}
		for _, e := range es {
			if _, err := os.Lstat(filepath.Join(seen, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		for i := range n {
			if _, err := os.Lstat(filepath.Join(seen, fmt.Sprint("missing", i))); !errors.Is(err, syscall.ENOENT) {
				t.Fatalf("stat of a missing name: %v", err)
			}
		}
	}
	calls := func() int64 { return c.Nodes[1].Client.Stats().MetaRemote }
	for _, pause := range []time.Duration{0, leases.Term * 3 / 2} {
		Eventually(t, fmt.Sprintf("it costs no call after %v", pause), func() bool {
			look(n)
			<-time.After(pause) // a busy machine may not renew in time
			before := calls()
			look(n)
			return calls() == before
		})
	}
	for i, m := range []*Mounted{ms[0], ms[1], ms[2]} {
		look(n + i)
		if err := os.WriteFile(filepath.Join(m.Scratch, dir, fmt.Sprint("missing", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Join(seen, fmt.Sprint("missing", i))); err != nil {
			t.Fatalf("made by node %d after it was missed: %v", m.Node, err)
		}
		if err := os.Rename(filepath.Join(m.Scratch, dir, fmt.Sprint("missing", i)), filepath.Join(m.Scratch, dir, fmt.Sprint("x", i))); err != nil {
			t.Fatal(err)
		}
		look(n + i + 1)
	}
}

// TestLookupsListOnce: a node that looks up name after name in a remote directory gets the rest with one listing.
func TestLookupsListOnce(t *testing.T) {
	t.Parallel()
	const n = 200
	c := Start(t, Config{})
	ms := c.Mount(t)
	for i := 0; ; i++ {
		made, seen := filepath.Join(ms[0].Scratch, fmt.Sprint("d", i)), filepath.Join(ms[1].Scratch, fmt.Sprint("d", i))
		if err := os.Mkdir(made, 0o755); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(seen)
		if err != nil {
			t.Fatal(err)
		}
		if inoOf(st).Home() == 1 {
			continue
		}
		for k := range n {
			if err := os.WriteFile(filepath.Join(made, fmt.Sprint("f", k)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(leases.Term) // a recent change of another node is not leased
		before := c.Nodes[1].Client.Stats().MetaRemote
		for k := range n {
			if _, err := os.Lstat(filepath.Join(seen, fmt.Sprint("f", k))); err != nil {
				t.Fatal(err)
			}
		}
		if calls := c.Nodes[1].Client.Stats().MetaRemote - before; calls > n/2 { // some leases end early on a busy machine
			t.Errorf("%d calls for %d names, want some ten", calls, n)
		}
		return
	}
}

// TestIdleFileIsClosed: a file that was read on a node stays open there for its home until another node removes it.
func TestIdleFileIsClosed(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ms := c.Mount(t)
	var made, seen string
	var ino metadata.Ino
	for i := 0; ; i++ {
		name := fmt.Sprint("f", i)
		made, seen = filepath.Join(ms[0].Scratch, name), filepath.Join(ms[1].Scratch, name)
		if err := os.WriteFile(made, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(made)
		if err != nil {
			t.Fatal(err)
		}
		if ino = inoOf(st); ino.Home() != 1 {
			break
		}
	}
	home := c.Nodes[ino.Home()].Home()
	Eventually(t, "it is idle", func() bool {
		if _, err := os.ReadFile(seen); err != nil {
			t.Fatal(err)
		}
		before := c.Nodes[1].Client.Stats()
		if _, err := os.ReadFile(seen); err != nil {
			t.Fatal(err)
		}
		return c.Nodes[1].Client.Stats().MetaRemote == before.MetaRemote && home.OpenFiles().Open > 0
	})
	if err := os.Remove(made); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(seen); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("read of a removed file = %v, want ENOENT", err)
	}
	Eventually(t, "it is closed", func() bool { s := home.OpenFiles(); return s.Open == 0 && s.Orphans == 0 })
	c.spaceBack(t)
}
