package partner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata/copies"
	"github.com/bivouacfs/bivouac/metadata/mirror"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
)

// makeCopy creates a complete copy of the records of node 1 below dir, and returns its directory.
func makeCopy(t *testing.T, dir string) string {
	t.Helper()
	dir = filepath.Join(dir, "1-0-7")
	c, err := pebblestore.OpenCopy(pebblestore.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Apply(nil, []byte(`{"Gen":7,"Seq":1,"Complete":true}`)), c.Sync(), c.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestUnreadableCopy: a copy that is unreadable at start fails the start and is kept; a damaged one is moved aside.
func TestUnreadableCopy(t *testing.T) {
	fake := nodetest.Join(t, 0, nodetest.NewRegistry(nodetest.View(2)), nodetest.NewNetwork())
	for _, c := range []struct {
		name  string
		spoil func(manifest string) error
		want  error
		whole uint64 // generation of the complete copy
		aside bool
	}{
		{"intact", func(string) error { return nil }, nil, 7, false},
		{"EIO", func(f string) error { return errors.Join(os.Remove(f), os.Symlink("/proc/self/mem", f)) }, syscall.EIO, 0, false},
		{"damaged", func(f string) error { return os.WriteFile(f, []byte("this is no manifest of a store"), 0o600) }, nil, 0, true},
		{"lost", os.Remove, nil, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			at := makeCopy(t, dir)
			manifests, err := filepath.Glob(filepath.Join(at, "MANIFEST-*"))
			if err != nil || len(manifests) != 1 {
				t.Fatalf("manifests %v, %v", manifests, err)
			}
			if err := c.spoil(manifests[0]); err != nil {
				t.Fatal(err)
			}
			r, err := openReceiver(&Config{Node: fake, Lease: new(copies.Lease), Dir: dir, Room: func() bool { return true }})
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Fatalf("openReceiver = %v, want %v", err, c.want)
			}
			if _, err := os.Stat(at); c.aside == (err == nil) {
				t.Errorf("the copy: %v; want it moved aside: %v", err, c.aside)
			}
			if err != nil {
				return
			}
			if got := r.of(1).state.Whole.Gen; got != c.whole {
				t.Errorf("complete copy %d, want %d", got, c.whole)
			}
			if err := r.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDropAgain: if removing a copy fails half-way, the next attempt removes it.
func TestDropAgain(t *testing.T) {
	dir := t.TempDir()
	at := makeCopy(t, dir)
	c, err := pebblestore.OpenCopy(pebblestore.Config{Dir: at})
	if err != nil {
		t.Fatal(err)
	}
	h := &received{state: mirror.Copies{Coming: mirror.Copy{Gen: 7}}, coming: c}
	if err := errors.Join(c.Close(), os.Rename(at, filepath.Join(dir, removing+"1_0_7"))); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := h.drop(at, h.coming); err != nil {
			t.Errorf("try %d: %v", i+2, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", fmt.Sprint(left), err)
	}
}

// TestLateMessage: a daemon that has closed its copies refuses messages for them.
func TestLateMessage(t *testing.T) {
	ms, _ := job(t, 2)
	if err := errors.Join(ms[0].Want(t.Context()), ms[1].recv.close()); err != nil {
		t.Fatal(err)
	}
	h := ms[1].recv.of(0)
	h.mu.Lock()
	q := &wire.MirrorReq{Gen: h.state.Whole.Gen, Seq: h.state.Whole.Seq + 1, Complete: true}
	h.mu.Unlock()
	if _, err := ms[1].recv.onMirror(t.Context(), &rpc.Request{Peer: 0}, q); !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("a late message: %v, want ESHUTDOWN", err)
	}
}
