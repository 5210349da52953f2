package testcluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
)

// heldDisk blocks all writes but those at the start of a file until it is released.
type heldDisk struct {
	chunkstore.FS
	free chan struct{}
}

func (d *heldDisk) Open(path string, flags int) (chunkstore.File, error) {
	f, err := d.FS.Open(path, flags)
	if err != nil {
		return nil, err
	}
	return &heldFile{f, d}, nil
}

type heldFile struct {
	chunkstore.File
	disk *heldDisk
}

func (f *heldFile) WriteAt(p []byte, off int64) (int, error) {
	if off > 0 {
		<-f.disk.free
	}
	return f.File.WriteAt(p, off)
}

// TestLeaveWithOpenFiles: the last writes are staged out, also those of a killed process whose file is still being
// closed, and of a process that has its file open.
func TestLeaveWithOpenFiles(t *testing.T) {
	const piece, pieces = 4096, 8
	disk := &heldDisk{FS: chunkstore.Machine, free: make(chan struct{})}
	to := filepath.Join(t.TempDir(), "out")
	c := Start(t, Config{StageOut: []job.StageOut{{From: "ckpt", To: to}}, Disk: func(i int) chunkstore.FS {
		if i == 1 {
			return disk
		}
		return nil
	}})
	letGo := sync.OnceFunc(func() { close(disk.free) })
	t.Cleanup(letGo)
	d := dirOn(t, c, 0, "ckpt")
	for _, name := range []string{"killed", "open"} {
		put(t, c.Nodes[0], d.Ino, name, nil, metadata.Layout{Kind: metadata.Local, Node: 1})
	}
	ckpt := filepath.Join(c.Mount(t, 2)[0].Scratch, "ckpt")
	t.Cleanup(letGo) // before the unmount
	want := bytes.Repeat([]byte("checkpoint, "), piece*pieces/12+1)[:piece*pieces]
	gathered := func() int64 { return c.Nodes[2].Client.Stats().Buffered }

	dd := exec.Command("dd", "of="+filepath.Join(ckpt, "killed"), fmt.Sprint("bs=", piece), "iflag=fullblock", "conv=notrunc")
	in, err := dd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := dd.Start(); err != nil {
		t.Fatal(err)
	}
	dead := make(chan struct{})
	go func() {
		defer close(dead)
		_ = dd.Wait() // it was killed
	}()
	t.Cleanup(func() { <-dead })
	t.Cleanup(func() { _ = dd.Process.Kill() }) // if it still runs
	if _, err := in.Write(want); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "dd has written", func() bool { return gathered() == piece*(pieces-1) })
	f := openTo(t, filepath.Join(ckpt, "open"), 0)
	for p := want; len(p) > 0; p = p[piece:] {
		if _, err := f.Write(p[:piece]); err != nil {
			t.Fatal(err)
		}
	}
	if n := gathered(); n != 2*piece*(pieces-1) {
		t.Fatalf("%d bytes are gathered, want all but the first pieces", n)
	}
	if err := dd.Process.Kill(); err != nil {
		t.Fatal(err)
	}

	var wg sync.WaitGroup
	for i, n := range c.Nodes {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), Patience)
			defer cancel()
			if err := n.Leave(ctx); err != nil {
				t.Errorf("node %d: %v", i, err)
			}
		})
	}
	Eventually(t, "the others leave", func() bool { return len(c.Nodes[2].View().Map.Up()) <= 1 })
	<-time.After(300 * time.Millisecond) // long enough for a wrong copy to show
	if n := copied(t, to); n != 0 {
		t.Errorf("%d files were copied before what was written had arrived", n)
	}
	letGo()
	wg.Wait()
	for _, name := range []string{"killed", "open"} {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the copy of %q has %d bytes, %v, want %d", name, len(got), err, len(want))
		}
	}
}
