package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/job"
)

// TestEmptiedStore: a daemon does not restart on a store that was emptied, since lost data would read as holes.
func TestEmptiedStore(t *testing.T) {
	top := t.TempDir()
	stores := []string{filepath.Join(top, "a"), filepath.Join(top, "b")}
	start := func() error {
		for _, s := range stores {
			if err := os.MkdirAll(s, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		d := &Daemon{job: &job.File{Dirs: job.Dirs{Store: stores, Run: filepath.Join(top, "run")}}}
		return d.recogniseStores()
	}
	for range 2 {
		if err := start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(top, "run", "stores")); err != nil { // as if killed before it was written
		t.Fatal(err)
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(stores[1]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := start(); err == nil || !strings.Contains(err.Error(), stores[1]) {
			t.Errorf("a start with an emptied store = %v, want an error that names it", err)
		}
	}
	stores = append(stores, filepath.Join(top, "c"))
	if err := os.WriteFile(filepath.Join(top, "run", "stores"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if start() == nil {
		t.Error("started on stores that the record does not have")
	}
}
