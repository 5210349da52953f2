package dataset

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

func (f *fakeNode) put(t *testing.T, id metadata.DatasetID, name string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(f.Files.Dir(id), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.Files.Path(id, name), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestUnknown: the error for a dataset that failed reports the failure, not that the dataset does not exist.
func TestUnknown(t *testing.T) {
	all := []cluster.Dataset{{Name: "a", Phase: cluster.Sealed}, {Name: "b", Phase: cluster.Failed, Error: "cancelled"}}
	for name, want := range map[string]string{"b": "dataset b was not staged: cancelled", "c": `no dataset is named "c": the job has a, b`} {
		if err := Unknown(name, all); !errors.Is(err, syscall.ENOENT) || err.Error() != want {
			t.Errorf("Unknown(%s) = %v, want %s", name, err, want)
		}
	}
}

// TestFetch: a file of any size is fetched whole or not at all.
func TestFetch(t *testing.T) {
	all, r := newNodes(t, 3)
	for _, size := range []int{0, 1, wire.MaxData, 2*wire.MaxData + 3} {
		want := bytes.Repeat([]byte("x"), size)
		all[1].put(t, 7, Manifest, want)
		path := all[0].Files.Path(7, Manifest)
		if err := all[0].Files.Fetch(t.Context(), 1, 7, Manifest, path); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, want) {
			t.Errorf("%d bytes of %d, %v", len(b), size, err)
		}
	}
	if err := all[0].Files.Fetch(t.Context(), 1, 7, State, all[0].Files.Path(7, State)); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a file that is not there: %v", err)
	}
	left, _ := filepath.Glob(all[0].Files.Path(7, "*"+newSuffix))
	if len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
	for _, name := range []string{"../secret", "", "journal", "part-x", "records-1/..", "standby"} {
		if err := all[0].Files.Fetch(t.Context(), 1, 7, name, filepath.Join(t.TempDir(), "x")); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("fetch of %q: %v, want EINVAL", name, err)
		}
		if err := all[0].Call(t.Context(), 1, wire.OpManifest, blobRequest{Dataset: 7, Name: name}, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("request for %q: %v, want EINVAL", name, err)
		}
	}
	if err := all[0].Call(t.Context(), 1, wire.OpManifest, blobRequest{Dataset: 7, Name: Manifest, Off: -1}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a negative offset: %v", err)
	}
	for _, name := range []string{PartFile(1), RecordsFile(2), SkipsFile(3), SumsFile(5), Origins, Order, AllSkips} {
		if !served(name) {
			t.Errorf("%s is not served", name)
		}
	}
	// Any node can provide the files if the coordinator no longer has them.
	ds := cluster.Dataset{ID: 8, Coordinator: 1}
	if err := all[0].Files.FetchAny(t.Context(), ds, Manifest); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a file that no node has: %v", err)
	}
	all[2].put(t, 8, Manifest, []byte("m"))
	if err := all[0].Files.FetchAny(t.Context(), ds, Manifest); err != nil {
		t.Error(err)
	}
	if err := all[2].Files.FetchAny(t.Context(), cluster.Dataset{ID: 8, Coordinator: 2}, Manifest); err != nil {
		t.Errorf("the coordinator's own: %v", err)
	}
	all[0].Network().Cut(2, syscall.EHOSTDOWN)
	r.SetState(1, cluster.Leaving)
	if err := all[0].Files.FetchAny(t.Context(), cluster.Dataset{ID: 9, Coordinator: 1}, Manifest); !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("a file that an unreachable node may have: %v", err)
	}
	all[0].Files.Remove(7, "mani*")
	if _, err := os.Stat(all[0].Files.Path(7, Manifest)); !os.IsNotExist(err) {
		t.Errorf("removed: %v", err)
	}
}

func TestSkipsFile(t *testing.T) {
	all, _ := newNodes(t, 2)
	ds := cluster.Dataset{ID: 7, Coordinator: 1}
	if path, err := all[0].Files.Skips(t.Context(), ds); path != os.DevNull || err != nil {
		t.Errorf("nothing was skipped: %q, %v", path, err)
	}
	ds.Skipped = 1
	if _, err := all[0].Files.Skips(t.Context(), ds); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a list that is not there: %v", err)
	}
	all[1].put(t, 7, AllSkips, []byte("{}\n"))
	for range 2 { // fetched, then already present
		path, err := all[0].Files.Skips(t.Context(), ds)
		if b, e := os.ReadFile(path); err != nil || e != nil || string(b) != "{}\n" {
			t.Errorf("the list is %q, %v, %v", b, err, e)
		}
	}
}
