package dataset

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// stage begins the fill of a dataset of n files from a directory, fetches their first pieces, and returns the files.
func (f *fakeNode) stage(t *testing.T, n int, layout metadata.Layout) (id metadata.DatasetID, inos []metadata.Ino) {
	t.Helper()
	id = 7
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var part, final bytes.Buffer
	w, scratch := manifest.NewWriter(&part), &manifest.Scratch{Dir: t.TempDir()}
	for i := range n {
		name := fmt.Sprintf("f%02d", i)
		node := f.src.Add("/src/"+name, source.TypeRegular|0o644, bytes.Repeat([]byte{byte(i + 1)}, 5000))
		a := metadata.Attr{Ino: ino(id, 0, uint32(i+1)), Mode: node.Info.Mode, Size: node.Info.Size, Mtime: node.Info.Mtime, Nlink: 1, Layout: layout}
		check(w.Add(manifest.Record{Path: name, Attr: a, From: manifest.Origin{Path: name}}))
		inos = append(inos, a.Ino)
	}
	check(w.Close())
	root := metadata.Attr{Mode: syscall.S_IFDIR | 0o755}
	_, err := manifest.Build(manifest.BuildConfig{Dataset: id, Root: root, Scratch: scratch}, []*manifest.Reader{manifest.NewReader(&part)}, &final)
	check(err)
	sum, err := manifest.Ingest(t.Context(), f.kv, manifest.NewReader(&final), scratch)
	check(err)
	x := table{digest: sum.Digest, summary: sum}
	x.table, err = manifest.Open(f.kv, id)
	check(err)
	f.Tables.set(t.Context(), id, x, nil)
	b, err := json.Marshal(stagein.Origins{Sources: []archive.Origin{{Path: "/src", Kind: source.Dir}}})
	check(err)
	f.put(t, id, Origins, b)
	check(f.Fills.Begin(cluster.Dataset{ID: id, Name: "ds", Digest: sum.Digest, Fill: true}, x.table))
	fill, _ := f.Fills.get(id)
	for _, i := range inos {
		check(fill.Need(t.Context(), i, 0, 1))
	}
	return id, inos
}

// TestRepairOfLinkedFile: a damaged file that a kernel view may read loses its link before it is refetched. Its object
// only ever receives the staged bytes, and the link is restored once the object has them. If the repair is interrupted,
// the kernel's pages are invalidated, too.
func TestRepairOfLinkedFile(t *testing.T) {
	all, _ := newNodes(t, 1)
	x := all[0]
	x.Fills.cfg.Sums = false // else files are linked only after a read
	x.Fills.SetViewed(func(metadata.DatasetID) bool { return true })
	id, inos := x.stage(t, 3, metadata.Layout{Kind: metadata.Local})
	fill, _ := x.Fills.get(id)
	for done := false; !done; _, done = fill.Done() { // else the fill's workers fetch what is dropped below
		time.Sleep(time.Millisecond)
	}
	bad := inos[1]
	src := x.src.Nodes["/src/f01"]
	good, changed, damaged := src.Data, bytes.Repeat([]byte{0xee}, 5000), bytes.Clone(src.Data)
	damaged[17] ^= 1
	wantObject := func(want []byte, linked bool) {
		t.Helper()
		b := make([]byte, len(want)+1)
		n, err := x.store.ReadAt(t.Context(), bad, b, 0)
		if err != nil || !bytes.Equal(b[:n], want) || x.store.Linked(bad) != linked {
			t.Errorf("the object has %x…, %v; linked %v, want %x…, %v", b[:18], err, x.store.Linked(bad), want[:18], linked)
		}
	}
	wantObject(good, true)
	if err := x.store.WriteAt(t.Context(), bad, damaged, 0); err != nil {
		t.Fatal(err)
	}
	dropped := make(chan []metadata.Ino, 10)
	wantDropped := func(after string) {
		t.Helper()
		select {
		case inos := <-dropped:
			if !slices.Equal(inos, []metadata.Ino{bad}) {
				t.Errorf("after %s the pages of %v are dropped", after, inos)
			}
		case <-time.After(time.Minute):
			t.Fatalf("after %s no page is dropped", after)
		}
	}
	x.Verifier.SetDropPages(func(inos []metadata.Ino) { dropped <- inos })
	x.src.OnRead = func(string, int64) { wantObject(damaged, false) }
	src.Data = changed
	q := &repairRequest{Dataset: id, Inos: []metadata.Ino{bad}}
	if r, err := x.Verifier.refetch(t.Context(), q); err != nil || r.Failed[bad] == "" {
		t.Errorf("refetch from a source that has changed = %+v, %v", r, err)
	}
	wantObject(damaged, false)

	src.Data = good
	ctx, cancel := context.WithCancel(t.Context())
	interrupted := make(chan struct{})
	x.src.OnRead = func(string, int64) {
		cancel()
		<-interrupted
	}
	if _, err := x.Verifier.refetch(ctx, q); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted refetch: %v", err)
	}
	close(interrupted)
	wantDropped("an interrupted refetch")
	for !x.store.Linked(bad) { // its read is still in progress
		time.Sleep(time.Millisecond)
	}
	if r, err := x.Verifier.refetch(t.Context(), q); err != nil || len(r.Failed) > 0 {
		t.Errorf("refetch = %+v, %v", r, err)
	}
	wantObject(good, true)

	res := VerifyResult{Bad: 1, BadFiles: []BadFile{{Ino: bad}}}
	if err := x.Verifier.repair(ctx, table{}, verifyRequest{Dataset: id}, &res); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted repair: %v", err)
	}
	wantDropped("an interrupted repair")
}

// TestLinkOfDroppedFile: a file that is dropped while it is being linked has no link in the end.
func TestLinkOfDroppedFile(t *testing.T) {
	all, _ := newNodes(t, 1)
	x := all[0]
	x.Fills.cfg.Sums = false
	id, inos := x.stage(t, 1, metadata.Layout{Kind: metadata.Local})
	x.Fills.SetViewed(func(metadata.DatasetID) bool { return true })
	fill, _ := x.Fills.get(id)
	delete(x.src.Nodes, "/src/f00") // so that it cannot be fetched again
	var wg sync.WaitGroup
	for range 300 {
		wg.Go(func() { x.Fills.link(inos[0]) })
	}
	if failed, err := fill.Refetch(t.Context(), inos); err != nil || len(failed) != 1 {
		t.Errorf("Refetch = %v, %v", failed, err)
	}
	wg.Wait()
	if x.store.Linked(inos[0]) {
		t.Error("a file that is not here is linked")
	}
}

// TestOpenOfChunks: the object of a file whose chunks all belong to this node is not read directly until all are
// stored, and with verify=reads verified. It may already have the file's size when only the last chunk is stored.
func TestOpenOfChunks(t *testing.T) {
	for _, sums := range []bool{false, true} {
		all, _ := newNodes(t, 1)
		x := all[0]
		x.Fills.cfg.Sums = sums
		var gates [5]chan struct{} // one per chunk, since the fill fetches the chunks by itself, too
		for i := range gates {
			gates[i] = make(chan struct{})
		}
		x.src.OnRead = func(_ string, off int64) { <-gates[off/1024] }
		close(gates[0])
		id, inos := x.stage(t, 1, metadata.Layout{Kind: metadata.Striped, ChunkSize: 1024})
		fill, _ := x.Fills.get(id)
		opens := func(want bool) {
			t.Helper()
			f, err := x.Local.Open(inos[0])
			if err == nil {
				_ = f.Close() // opened read-only
			}
			if (err == nil) != want || err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("verify=reads %v: Open: %v, want %v", sums, err, want)
			}
		}
		for _, off := range []int64{4096, 1024, 2048, 3072} {
			opens(false)
			close(gates[off/1024])
			if err := fill.Need(t.Context(), inos[0], off, 1); err != nil {
				t.Fatal(err)
			}
		}
		opens(!sums)
		for off := range int64(5) {
			opens(!sums)
			if n, err := x.Local.ReadAt(t.Context(), inos[0], make([]byte, 1), 1024*off); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		opens(true)
	}
}

// TestVerifyStandIn: pieces that a node fetched for a lost node are still verified and repaired after the lost node has
// returned, by verify and by the scrub, since they are read unverified if that node is lost again.
func TestVerifyStandIn(t *testing.T) {
	all, _ := newNodes(t, 2)
	x := all[0]
	x.Fills.cfg.Sums = false
	id, inos := x.stage(t, 3, metadata.Layout{Kind: metadata.Local, Node: 1})
	for _, pace := range []*rate.Bucket{nil, rate.New(1<<30, nil)} {
		if err := x.store.WriteAt(t.Context(), inos[1], []byte{0xee}, 17); err != nil {
			t.Fatal(err)
		}
		q := &verifyRequest{Dataset: id}
		res, err := x.Verifier.runPaced(t.Context(), q, pace)
		if err != nil || res.Bad != 1 || res.BadFiles[0].Ino != inos[1] {
			t.Errorf("after damage: %+v, %v", res, err)
		}
		if r, err := x.Verifier.refetch(t.Context(), &repairRequest{Dataset: id, Inos: inos[1:2]}); err != nil || len(r.Failed) > 0 {
			t.Errorf("refetch: %+v, %v", r, err)
		}
		if res, err := x.Verifier.runPaced(t.Context(), q, pace); err != nil || res.Bad != 0 {
			t.Errorf("after the repair: %+v, %v", res, err)
		}
	}
}
