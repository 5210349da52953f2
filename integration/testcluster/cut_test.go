package testcluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// worker repeatedly writes and reads back the blocks of its own file; rounds counts the rounds without error.
type worker struct {
	file   *os.File
	rounds atomic.Int64
}

const (
	workerBlock  = 300_000 // spans the chunks of several nodes
	workerBlocks = 12
)

// block returns the content of block i in round r.
func block(r, i int) []byte {
	return bytes.Repeat(binary.LittleEndian.AppendUint64(nil, uint64(r)<<16|uint64(i)), workerBlock/8)
}

// round writes all blocks, stats the file, and reads the blocks.
func (w *worker) round(r int) error {
	for i := range workerBlocks {
		if _, err := w.file.WriteAt(block(r, i), int64(i*workerBlock)); err != nil {
			return fmt.Errorf("round %d: %w", r, err)
		}
	}
	if st, err := w.file.Stat(); err != nil || st.Size() != workerBlocks*workerBlock {
		return fmt.Errorf("round %d: size %d, %w", r, st.Size(), err)
	}
	if err := w.file.Truncate(int64((workerBlocks - 1) * workerBlock)); err != nil {
		return fmt.Errorf("round %d: %w", r, err)
	}
	got := make([]byte, workerBlock)
	for i := range workerBlocks - 1 {
		if n, err := w.file.ReadAt(got, int64(i*workerBlock)); err != nil || !bytes.Equal(got, block(r, i)) {
			return fmt.Errorf("round %d: block %d: %d bytes, as written: %v: %w", r, i, n, bytes.Equal(got, block(r, i)), err)
		}
	}
	return nil
}

func (w *worker) run(stop <-chan struct{}) error {
	for r := 1; ; r++ {
		select {
		case <-stop:
			return w.file.Close()
		default:
		}
		if err := w.round(r); err != nil {
			return errors.Join(err, w.file.Close())
		}
		w.rounds.Add(1)
	}
}

// cutUnder cuts links of one node after another for a while, under the load counted in rounds, and waits each time
// until every counter advances again.
func (c *Cluster) cutUnder(t *testing.T, rounds []*atomic.Int64) {
	t.Helper()
	for i := range 6 {
		went := make([]int64, len(rounds))
		for k, n := range rounds {
			went[k] = n.Load()
		}
		failed := c.Nodes[0].Peers().Stats().DialsFailed
		c.Cut(1 + i%3)
		Eventually(t, "calls find the link cut for a while", func() bool { // about 300 ms
			return c.Nodes[0].Peers().Stats().DialsFailed > failed+3
		})
		c.Mend(1 + i%3)
		Eventually(t, "all go on", func() bool {
			for k, n := range rounds {
				if n.Load() == went[k] && !t.Failed() {
					return false
				}
			}
			return true
		})
	}
}

// TestShortCut: readers and writers do not notice short link failures under load: no errors, and every byte is the
// last one written.
func TestShortCut(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 4, Timing: daemon.Timing{Report: 30 * time.Millisecond, Down: Patience}})
	ms := c.Mount(t, 0, 1)
	m := ms[0]
	far := filepath.Join("far", "files") // whose home is another node
	if err := os.MkdirAll(filepath.Join(ms[1].Scratch, far), 0o755); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var rounds []*atomic.Int64
	for i := range 4 {
		// O_DIRECT makes each read and write a call.
		f, err := os.OpenFile(filepath.Join(m.Scratch, far, fmt.Sprint("file", i)), os.O_RDWR|os.O_CREATE|syscall.O_DIRECT, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		w := &worker{file: f}
		rounds = append(rounds, &w.rounds)
		wg.Go(func() {
			if err := w.run(stop); err != nil {
				t.Error(err)
			}
		})
	}
	Eventually(t, "cuts hit calls", func() bool {
		c.cutUnder(t, rounds)
		return t.Failed() || c.Nodes[0].Peers().Stats().Lost > 0
	})
	close(stop)
	wg.Wait()
}

// namer makes, renames, syncs and removes files on other nodes; rounds counts the rounds without error.
type namer struct {
	client *fsclient.Client
	dirs   [2]metadata.Ino // with two different homes
	rounds atomic.Int64
}

// round returns the first error: each call must take effect once, and report success.
func (w *namer) round(r int) error {
	ctx := context.Background()
	var errs []error
	do := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("round %d: %s: %w", r, what, err))
		}
	}
	c, a, b := w.client, w.dirs[0], w.dirs[1]
	name := fmt.Sprint("f", r)
	f, at, err := c.CreateOpen(ctx, a, name, metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		return fmt.Errorf("round %d: create: %w", r, err)
	}
	_, err = f.WriteAt(ctx, []byte("some bytes"), 0)
	do("write", err)
	do("sync", f.Sync(ctx))
	do("setxattr", c.Setxattr(ctx, at.Ino, metadata.Xattr{Name: "user.x", Value: []byte("1"), Mode: metadata.XattrCreate}))
	do("close", f.Close(ctx))
	_, err = c.Link(ctx, at.Ino, a, "link")
	do("link", err)
	_, err = c.Rename(ctx, metadata.Rename{Dir: a, Name: name, NewDir: b, NewName: name, Flags: metadata.RenameNoReplace})
	do("rename to another home", err)
	for _, e := range []struct {
		dir  metadata.Ino
		name string
	}{{b, name}, {a, "link"}} {
		_, err = c.Unlink(ctx, e.dir, e.name)
		do("unlink "+e.name, err)
	}
	_, err = c.Mkdir(ctx, a, "sub", metadata.New{Mode: syscall.S_IFDIR | 0o755})
	do("mkdir", err)
	do("rmdir", c.Rmdir(ctx, a, "sub"))
	return errors.Join(errs...)
}

// TestShortCutOfNames: creates, renames and removals survive short link failures, also between homes: no error, and
// no change is applied twice.
func TestShortCutOfNames(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 4, Timing: daemon.Timing{Report: 30 * time.Millisecond, Down: Patience}})
	ctx := context.Background()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var rounds []*atomic.Int64
	for i := range 4 {
		w := &namer{client: c.Nodes[0].Client}
		for k := range w.dirs {
			a, err := c.Nodes[1+(i+k)%3].Client.Mkdir(ctx, metadata.RootIno, fmt.Sprint("dir", i, k), metadata.New{Mode: syscall.S_IFDIR | 0o755})
			if err != nil {
				t.Fatal(err)
			}
			if w.dirs[k] = a.Ino; int(a.Ino.Home()) != 1+(i+k)%3 {
				t.Fatalf("directory %d of worker %d is at home on node %d", k, i, a.Ino.Home())
			}
		}
		rounds = append(rounds, &w.rounds)
		wg.Go(func() {
			for r := 0; ; r++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := w.round(r); err != nil {
					t.Error(err)
					return
				}
				w.rounds.Add(1)
			}
		})
	}
	Eventually(t, "cuts hit calls", func() bool { // where tests share two processors, six cuts may hit no call
		c.cutUnder(t, rounds)
		s := c.Nodes[0].Peers().Stats()
		return t.Failed() || s.Lost > 0 && s.Calls[wire.OpCachedReply] > 0
	})
	close(stop)
	wg.Wait()
	c.Check(t)
}

// TestLongCut: once a node that does not return is declared lost, pending and later reads of its data fail.
func TestLongCut(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 4})
	ctx := context.Background()
	a, err := c.Nodes[0].Client.Create(ctx, metadata.RootIno, "f", metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte{7}, 16<<20) // on all nodes
	if err := c.Nodes[0].Client.WriteFile(ctx, a, data, 0); err != nil {
		t.Fatal(err)
	}
	a.Size = int64(len(data))
	c.Cut(3)
	for range 2 { // while the node may return, and after it is declared lost
		_, rerr := c.Nodes[0].Client.ReadFile(ctx, a, make([]byte, len(data)), 0)
		werr := c.Nodes[0].Client.WriteFile(ctx, a, data, 0)
		for _, err := range []error{rerr, werr} {
			if !errors.Is(err, syscall.EHOSTDOWN) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("on a node that is gone: %v, want EHOSTDOWN", err)
			}
		}
	}
	there := 0
	for off := int64(0); off < a.Size; off += a.Layout.Chunk() {
		if _, err := c.Nodes[0].Client.ReadFile(ctx, a, make([]byte, a.Layout.Chunk()), off); err == nil {
			there++
		}
	}
	if there != 12 {
		t.Errorf("%d of 16 chunks can be read, want those of three nodes", there)
	}
}

// TestCutIsInterruptible: a call that waits for a node to return can be interrupted.
func TestCutIsInterruptible(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 4, Timing: daemon.Timing{Report: 30 * time.Millisecond, Down: Patience}})
	a, err := c.Nodes[0].Client.Create(context.Background(), metadata.RootIno, "f", metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	c.Cut(3)
	ctx, cancel := context.WithCancel(context.Background())
	wrote := make(chan error, 1)
	go func() { wrote <- c.Nodes[0].Client.WriteFile(ctx, a, make([]byte, 16<<20), 0) }()
	Eventually(t, "a call that finds no connection", func() bool { return c.Nodes[0].Peers().Stats().DialsFailed > 2 })
	cancel()
	if err := <-wrote; !errors.Is(err, syscall.EINTR) {
		t.Errorf("write = %v, want EINTR", err)
	}
}
