package netcluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// patience bounds the wait for an end; it is no measure of speed.
const patience = time.Minute

// within fails the test if f does not return in time.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s: still not over after %v", what, patience)
	}
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func wantFile(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes that differ from the %d written", path, len(got), len(want))
	}
}

// TestScratch: files written and closed on one node are read on all others.
func TestScratch(t *testing.T) {
	c := Start(t, 4)
	big := randomBytes(9<<20 + 12345)
	within(t, "write and read", func() {
		if err := os.MkdirAll(c.Scratch(0, "a/b/c"), 0o755); err != nil {
			t.Error(err)
			return
		}
		for i := range c.Nodes {
			write(t, c.Scratch(i, "a/b/c", fmt.Sprintf("from%d", i)), big[:len(big)-i])
		}
		for i := range c.Nodes {
			for k := range c.Nodes {
				wantFile(t, c.Scratch(i, "a/b/c", fmt.Sprintf("from%d", k)), big[:len(big)-k])
			}
		}
		if err := os.Rename(c.Scratch(1, "a/b/c/from0"), c.Scratch(1, "moved")); err != nil {
			t.Error(err)
		}
		wantFile(t, c.Scratch(2, "moved"), big)
		if err := os.RemoveAll(c.Scratch(3, "a")); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(c.Scratch(0, "a")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("removed directory: %v, want ENOENT", err)
		}
	})
}

// makeTree makes a small source directory.
func makeTree(t *testing.T) (dir string, files map[string][]byte) {
	t.Helper()
	dir, files = filepath.Join(t.TempDir(), "set"), make(map[string][]byte)
	for i := range 200 {
		p := fmt.Sprintf("class%d/img%03d.jpg", i%7, i)
		files[p] = randomBytes(i * 97 % 9000)
	}
	files["big.bin"] = randomBytes(5<<20 + 7)
	for p, b := range files {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(p)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, p), b)
	}
	return dir, files
}

// TestDataset: a dataset of the job file is complete and read-only on all nodes.
func TestDataset(t *testing.T) {
	dir, files := makeTree(t)
	c := Start(t, 4, job.Dataset{Source: dir, Name: "set"})
	ctx := context.Background()
	eventually(t, "sealed", func() bool {
		s, err := c.Ctl(3).Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Datasets) == 1 && s.Datasets[0].Phase == cluster.Failed {
			t.Fatal(s.Datasets[0].Error)
		}
		return len(s.Datasets) == 1 && s.Datasets[0].Phase == cluster.Sealed
	})
	within(t, "read", func() {
		for i := range c.Nodes {
			for p, want := range files {
				wantFile(t, c.Data(i, "set", p), want)
			}
			if err := os.WriteFile(c.Data(i, "set", "new"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
				t.Errorf("write to a sealed dataset: %v, want EROFS", err)
			}
		}
	})
}

// TestCutLink: an unreachable node causes an error in bounded time, never a hang, and the others continue.
func TestCutLink(t *testing.T) {
	c := Start(t, 4)
	b := randomBytes(8 << 20)
	write(t, c.Scratch(0, "striped"), b)
	c.Cut(t, 3)
	within(t, "read over a cut link", func() {
		if got, err := os.ReadFile(c.Scratch(1, "striped")); err == nil && !bytes.Equal(got, b) {
			t.Error("a read over a cut link gave wrong bytes")
		}
	})
	eventually(t, "the others see it Down", func() bool {
		s, err := c.Ctl(1).Status(context.Background())
		return err == nil && s.Nodes[3].State == cluster.Down
	})
	within(t, "work without it", func() {
		write(t, c.Scratch(1, "after"), b)
		wantFile(t, c.Scratch(2, "after"), b)
		if _, err := os.ReadFile(c.Scratch(1, "striped")); err == nil {
			t.Error("chunks on a lost node were read, want an error")
		}
	})
	c.Mend(t, 3)
	eventually(t, "it comes back", func() bool {
		s, err := c.Ctl(1).Status(context.Background())
		return err == nil && s.Nodes[3].State == cluster.Up
	})
	within(t, "read after it came back", func() { wantFile(t, c.Scratch(1, "striped"), b) })
}

// TestKilledLeader: the control plane survives the loss of its leader.
func TestKilledLeader(t *testing.T) {
	c := Start(t, 4)
	s, err := c.Ctl(3).Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	dead := int(s.Leader)
	c.Kill(t, dead)
	other := (dead + 1) % 4
	eventually(t, "a new leader gives it up", func() bool {
		s, err := c.Ctl(other).Status(context.Background())
		return err == nil && s.Nodes[dead].State == cluster.Down && int(s.Leader) != dead
	})
	within(t, "write", func() {
		dir := c.Scratch(other, "x")
		// The home of the scratch root is node 0: without it there is an error, not a hang.
		if err := os.Mkdir(dir, 0o755); err != nil && dead != 0 {
			t.Error(err)
		}
	})
}

// TestNetworkOutlivesItsThread: a network survives the end of the thread that made it.
func TestNetworkOutlivesItsThread(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	var nw *Network
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // for good, so that the thread ends here
		var err error
		nw, err = NewNetwork(2)
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	defer nw.Close()
	for range 20 {
		time.Sleep(10 * time.Millisecond) // the thread ends some time after the goroutine
		if err := nw.run(0, "ip", "link", "show", "dev", "eth0"); err != nil {
			t.Fatal(err)
		}
	}
}
