package fill_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// held blocks the reads of a source, except for the paths that are let through.
type held struct {
	gate chan struct{} // closed to let all reads through
	n    atomic.Int64  // reads blocked now
	most atomic.Int64  // maximum of n
	mu   sync.Mutex
	seen map[string]bool // guarded by mu; paths with a read
	free map[string]bool // guarded by mu; paths whose reads are not blocked
}

func (h *held) read(path string, _ int64) {
	h.mu.Lock()
	h.seen[path] = true
	free := h.free[path]
	h.mu.Unlock()
	if free {
		return
	}
	n := h.n.Add(1)
	defer h.n.Add(-1)
	for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
	}
	<-h.gate
}

// let lets the reads of a path through unless one has begun, and returns whether it did.
func (h *held) let(path string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.free[path] = !h.seen[path]
	return h.free[path]
}

// treeFill returns the fill of a directory of n small files on its only node.
func treeFill(t *testing.T, n int) (*jobtest.Job, *fill.Fill, *stageintest.MemFiles) {
	return treeFillOf(t, n, 1000)
}

func treeFillOf(t *testing.T, n, size int) (*jobtest.Job, *fill.Fill, *stageintest.MemFiles) {
	t.Helper()
	j := &jobtest.Job{FS: stageintest.NewFS(), Nodes: 1, Path: "/src/tree", Target: &stageintest.MemTarget{Objects: map[stageintest.ObjectKey][]byte{}}}
	j.FS.Add(j.Path, source.TypeDir|0o755, nil)
	for i := range n {
		j.FS.Add(fmt.Sprintf("%s/f%02d", j.Path, i), source.TypeRegular|0o644, bytes.Repeat([]byte{byte(i)}, size))
	}
	m := stageintest.ClusterMap(1)
	var records bytes.Buffer
	s, err := scan.Run(t.Context(), &scan.Config{FS: j.FS, Request: stagein.Request{Source: j.Path, Name: "ds"}, Dataset: 3, Map: m, Log: stageintest.QuietLog()}, &records)
	if err != nil {
		t.Fatal(err)
	}
	files, err := stageintest.FilesOf(records.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	f, err := j.Filler(m, 0, s, files, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return j, f, files
}

// TestReadsByItself: the worker that fetches a small file also reads it: no other goroutine is woken to read the file
// or to take the data.
func TestReadsByItself(t *testing.T) {
	j, f, _ := treeFill(t, 20)
	var reads, others atomic.Int64
	j.FS.OnRead = func(string, int64) {
		reads.Add(1)
		if stack := debug.Stack(); !bytes.Contains(stack, []byte(".(*Fill).fetchOnce(")) {
			others.Add(1)
		}
	}
	if err := errors.Join(j.RunFill(t.Context(), f), f.Close()); err != nil {
		t.Fatal(err)
	}
	if reads.Load() != 20 || others.Load() != 0 {
		t.Errorf("20 files took %d reads, %d of them by others than who fetches the file, want 20 and 0", reads.Load(), others.Load())
	}
}

// TestOpensAheadOfReads: files of a directory are opened while others are read, more of them than are read
// concurrently; a demand for a file that waits is read at once.
func TestOpensAheadOfReads(t *testing.T) {
	h := &held{gate: make(chan struct{}), seen: make(map[string]bool), free: make(map[string]bool)}
	ctx := context.Background()
	j, f, files := treeFill(t, 60)
	j.FS.OnRead = h.read
	done := make(chan error, 1)
	go func() { done <- j.RunFill(ctx, f) }()
	ahead := int64((1 + fill.OpenPerRead) * f.Config().Workers)
	deadline := time.After(time.Minute)
	for h.n.Load() < int64(f.Config().Workers) || j.FS.Opened.Load() < ahead {
		select {
		case <-deadline:
			t.Fatalf("%d files are open, %d are read, want %d and %d", j.FS.Opened.Load(), h.n.Load(), ahead, f.Config().Workers)
		case <-time.After(time.Millisecond):
		}
	}
	p, path := waiting(f, files, h)
	if path == "" {
		t.Fatal("no file is open that is not read")
	}
	if err := f.Need(ctx, p.Ino, 0, 1000); err != nil { // the reads of the other files are blocked
		t.Fatal(err)
	}
	close(h.gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if most := h.most.Load(); most != int64(f.Config().Workers) {
		t.Errorf("%d files were read at a time, want %d", most, f.Config().Workers)
	}
	if got := f.Progress(); got.Files != 60 || got.Demand != 0 {
		t.Errorf("progress %+v", got)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFilesPassTheGate: during startup the bytes of a directory's files that are read ahead concurrently are limited,
// too, and a demand for a file that waits for the limit is read at once.
func TestFilesPassTheGate(t *testing.T) {
	h := &held{gate: make(chan struct{}), seen: make(map[string]bool), free: make(map[string]bool)}
	ctx := context.Background()
	const size = 100_000
	j, f, files := treeFillOf(t, 40, size)
	j.FS.OnRead = h.read
	served := f.StartupDemand()
	done := make(chan error, 1)
	go func() { done <- j.RunFill(ctx, f) }()
	deadline := time.After(time.Minute)
	for want := f.Config().Workers - fill.MinInFlight/size; f.StartupQueue() < want || h.n.Load() < fill.MinInFlight/size; {
		select {
		case <-deadline:
			t.Fatalf("%d files wait for others, %d are read, want %d and %d", f.StartupQueue(), h.n.Load(), want, fill.MinInFlight/size)
		case <-time.After(time.Millisecond):
		}
	}
	p, path := waiting(f, files, h)
	if path == "" {
		t.Fatal("no file is open that is not read")
	}
	if err := f.Need(ctx, p.Ino, 0, 1000); err != nil { // the reads of the other files are blocked
		t.Fatal(err)
	}
	if most := h.most.Load(); most > fill.MinInFlight/size {
		t.Errorf("%d files are read ahead at a time, want %d of %d bytes", most, fill.MinInFlight/size, size)
	}
	served()
	close(h.gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := f.Progress(); got.Files != 40 {
		t.Errorf("progress %+v", got)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestOpensSlowly: during startup few files of a directory are opened ahead; once all files are taken, the fill does
// not wait for the end of startup.
func TestOpensSlowly(t *testing.T) {
	const files = 40
	for _, tt := range []struct {
		name  string
		ends  bool // startup ends before all files are taken
		worst int64
	}{{"beginning", false, fill.FirstWorkers}, {"later", true, files}} {
		t.Run(tt.name, func(t *testing.T) {
			h := &held{gate: make(chan struct{}), seen: make(map[string]bool), free: make(map[string]bool)}
			j, f, _ := treeFill(t, files)
			j.FS.OnRead = h.read
			served := f.StartupDemand()
			if tt.ends {
				served()
			}
			done := make(chan error, 1)
			go func() { done <- j.RunFill(t.Context(), f) }()
			least := min(tt.worst, int64((1+fill.OpenPerRead)*f.Config().Workers))
			deadline := time.After(time.Minute)
			for j.FS.Opened.Load() < least {
				select {
				case <-deadline:
					t.Fatalf("%d files are open, want %d", j.FS.Opened.Load(), least)
				case <-time.After(time.Millisecond):
				}
			}
			if got := j.FS.Opened.Load(); got > tt.worst {
				t.Errorf("%d files are open, want at most %d", got, tt.worst)
			}
			close(h.gate)
			if err := <-done; err != nil { // startup lasts for a gateEarly, or for ever
				t.Fatal(err)
			}
			if got := f.Progress(); got.Files != files {
				t.Errorf("progress %+v", got)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// waiting returns a piece in flight that was not read yet; its reads are let through from now on.
func waiting(f *fill.Fill, files *stageintest.MemFiles, h *held) (fill.PieceID, string) {
	for _, p := range f.Flights() {
		path := "/src/tree/" + pathOf(files, p.Ino)
		if h.let(path) {
			return p, path
		}
	}
	return fill.PieceID{}, ""
}

func pathOf(files *stageintest.MemFiles, ino metadata.Ino) string { return files.ByIno[ino].Path }
