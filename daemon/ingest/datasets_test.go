package ingest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// staged returns a job with a ready dataset of n files.
func staged(t *testing.T, nodes, n, size int) (*fakeJob, cluster.Dataset, map[string][]byte) {
	t.Helper()
	f := startJob(t, nodes)
	want := f.tree(n, size)
	if err := f.nodes[0].stager.StageIn(t.Context(), job.Dataset{Source: "/src", Name: "set"}); err != nil {
		t.Fatal(err)
	}
	return f, f.sealed(), want
}

// spoil overwrites the first bytes of a file on the node that stores it.
func (f *fakeJob) spoil(a metadata.Attr) *fakeNode {
	f.t.Helper()
	x := f.nodes[f.holder(a)]
	if err := x.store.WriteAt(f.t.Context(), a.Ino, []byte("spoiled"), 0); err != nil {
		f.t.Fatal(err)
	}
	return x
}

// TestVerifyAndRepair: files that differ from the staged bytes are found, named and refetched; files that cannot be
// refetched stay bad.
func TestVerifyAndRepair(t *testing.T) {
	f, ds, want := staged(t, 3, 30, 4000)
	dropped := make(chan []metadata.Ino, 16)
	for _, x := range f.nodes {
		x.data.Verifier.SetDropPages(func(inos []metadata.Ino) { dropped <- inos })
	}
	verify := func(s dataset.VerifySpec) dataset.VerifyResult {
		t.Helper()
		s.Name = "set"
		r, err := f.nodes[1].data.Verifier.Verify(t.Context(), s)
		if err != nil || r.Files != 30 || r.Bytes != 30*4000 || r.Unsummed != 0 || r.Overflow != 0 {
			t.Errorf("%+v: %+v, %v", s, r, err)
		}
		return r
	}
	if r := verify(dataset.VerifySpec{}); r.Bad != 0 || r.Repaired != 0 {
		t.Errorf("right files: %+v", r)
	}
	bad := f.files(0, ds.ID)["d1/f4"]
	x := f.spoil(bad)
	if r := verify(dataset.VerifySpec{Keep: true}); r.Bad != 1 || r.Repaired != 0 || string(r.BadFiles[0].Path) != "d1/f4" || r.BadFiles[0].Host != fmt.Sprintf("node%d", x.Self()) {
		t.Errorf("a bad file that is kept: %+v", r)
	}
	if r := verify(dataset.VerifySpec{SHA256: true}); r.Bad != 0 || r.Repaired != 1 || !r.BadFiles[0].Repaired {
		t.Errorf("a bad file: %+v", r)
	}
	for range f.nodes {
		if inos := <-dropped; len(inos) != 1 || inos[0] != bad.Ino {
			t.Errorf("pages of %v are dropped", inos)
		}
	}
	f.wantFiles(ds.ID, want)
	paths, err := f.nodes[2].data.Verifier.Sums(t.Context(), "set")
	if err != nil {
		t.Fatal(err)
	}
	var sums []byte
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, b...)
	}
	for path, b := range want {
		if line := fmt.Sprintf("%x  %s\n", sha256.Sum256(b), path); !bytes.Contains(sums, []byte(line)) {
			t.Errorf("the list lacks %q", line)
		}
	}
	f.spoil(bad)
	delete(f.src.Nodes, "/src/d1/f4")
	if r := verify(dataset.VerifySpec{}); r.Bad != 1 || r.Repaired != 0 || !strings.Contains(r.BadFiles[0].Error, "cannot be fetched again") {
		t.Errorf("a bad file whose source is gone: %+v", r)
	}
	delete(want, "d1/f4")
	for i, x := range f.nodes {
		var from datapath.Reader = x.data.Local
		if id := f.holder(bad); id != x.Self() {
			from = x.data.Stores.Of(id)
		}
		if n, err := from.ReadAt(t.Context(), bad.Ino, make([]byte, bad.Size), 0); err == nil {
			t.Errorf("node %d reads %d bytes of it", i, n)
		}
	}
	if p := f.dataset().Phase; p != cluster.Sealed {
		t.Errorf("one bad file makes the dataset %v", p)
	}
	if _, err := f.nodes[0].data.Verifier.Verify(t.Context(), dataset.VerifySpec{Name: "other"}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a dataset that is not there: %v", err)
	}
	if _, err := f.nodes[0].data.Verifier.Sums(t.Context(), "other"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("sums of a dataset that is not there: %v", err)
	}
}

// TestVerifiedReads: a reader that asks for checksums gets the right bytes, even if the object is bad, or an error.
func TestVerifiedReads(t *testing.T) {
	f, ds, want := staged(t, 2, 12, 4000)
	var bad []metadata.Attr
	var paths []string
	for path, a := range f.files(0, ds.ID) {
		if f.holder(a) == 1 && len(bad) < 2 {
			bad, paths = append(bad, a), append(paths, path)
		}
	}
	from := remote.NewData(f.nodes[0].To(1))
	read := func(i int) (bool, error) {
		p := make([]byte, 4000)
		n, err := from.ReadSummed(t.Context(), bad[i].Ino, p, 0)
		return n == 4000 && bytes.Equal(p, want[paths[i]]), err
	}
	f.spoil(bad[0])
	if ok, err := read(0); !ok || err != nil {
		t.Errorf("a bad object: %v, %v", ok, err)
	}
	f.spoil(bad[1])
	delete(f.src.Nodes, "/src/"+paths[1])
	if _, err := read(1); !errors.Is(err, syscall.EIO) {
		t.Errorf("a bad object whose source is gone: %v, want EIO", err)
	}
}

// TestReadsWhileFilling: a file that is read during the fill is fetched by its owner for all readers; other nodes get
// EAGAIN if that takes long.
func TestReadsWhileFilling(t *testing.T) {
	f := startJob(t, 2)
	want := f.tree(40, 3000)
	release := make(chan struct{})
	f.src.OnRead = func(string, int64) { <-release }
	if err := f.nodes[0].stager.StageIn(t.Context(), job.Dataset{Source: "/src", Name: "set"}); err != nil {
		t.Fatal(err)
	}
	f.eventually("the tree is readable", func() bool {
		return f.dataset().Phase == cluster.Filling && len(f.nodes[0].data.Fills.Report())+len(f.nodes[1].data.Fills.Report()) == 2
	})
	ds := f.dataset()
	var a metadata.Attr
	for _, a = range f.files(0, ds.ID) {
		if f.holder(a) == 1 {
			break
		}
	}
	p := make([]byte, a.Size)
	x := f.nodes[1].data
	if _, err := x.Local.ReadIfPresent(t.Context(), a.Ino, p, 0); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a file that is not here: %v, want EAGAIN", err)
	}
	if _, err := x.Local.Open(a.Ino); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the object of a file that is not here: %v", err)
	}
	if _, err := remote.NewData(f.nodes[0].To(1)).ReadIfPresent(t.Context(), a.Ino, p, 0); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("another node's file that is not there: %v, want EAGAIN", err)
	}
	r := x.Fills.Report()[ds.ID]
	if r.Complete != 0 || r.Error != "" || r.Progress.Bytes != 0 {
		t.Errorf("report %+v", r)
	}
	close(release)
	f.sealed()
	f.wantFiles(ds.ID, want)
	if _, err := x.Local.ReadIfPresent(t.Context(), a.Ino, p, 0); err != nil {
		t.Error(err)
	}
	if file, err := x.Local.Open(a.Ino); err != nil {
		t.Error(err)
	} else if err := file.Close(); err != nil {
		t.Error(err)
	}
	if all, more, ok := x.Fills.Unreadable(ds.ID); len(all) != 0 || more != 0 || !ok {
		t.Errorf("unreadable: %v, %d, %v", all, more, ok)
	}
	if _, _, ok := x.Fills.Unreadable(99); ok {
		t.Error("a dataset that is not there is fetched")
	}
}

// piece returns a small piece for an object.
func piece(ino metadata.Ino, text string) datapath.PiecePut {
	return datapath.PiecePut{Ino: ino, Data: [][]byte{[]byte(text)}, Sum: wire.PieceSum([]byte(text))}
}

// TestPutPieces: a damaged piece, or one of no dataset, does not affect the other pieces.
func TestPutPieces(t *testing.T) {
	f := newJob(t, 2)
	to := f.nodes[0].data.Stores.Since(0)
	good := metadata.SealedIno(3, 1, 1)
	errs, err := to.PutAll(t.Context(), 1, []datapath.PiecePut{piece(metadata.RootIno+5, "live"), piece(good, "sealed")})
	if err != nil || len(errs) != 2 || !errors.Is(errs[0], syscall.EINVAL) || errs[1] != nil {
		t.Errorf("PutAll = %v, %v", errs, err)
	}
	p := make([]byte, 6)
	if n, err := f.nodes[1].store.ReadAt(t.Context(), good, p, 0); n != 6 || err != nil || string(p) != "sealed" {
		t.Errorf("stored: %q, %v", p[:n], err)
	}
	if err := to.Put(t.Context(), 1, good, []byte("again!"), 0); err != nil {
		t.Error(err)
	}
	if err := to.Remove(t.Context(), 1, good); err != nil {
		t.Error(err)
	}
	// A node that was down since the stage-in began receives no pieces.
	e := f.registry.View().Map.Epoch
	f.registry.SetState(1, cluster.Down)
	f.registry.SetState(1, cluster.Up)
	if err := f.nodes[0].data.Stores.Since(e).Put(t.Context(), 1, good, []byte("x"), 0); err != nil {
		t.Errorf("a write for a lost node: %v", err)
	}
	if n, err := f.nodes[1].store.ReadAt(t.Context(), good, p, 0); n != 0 || err != nil && !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a lost node got %d bytes, %v", n, err)
	}
}
