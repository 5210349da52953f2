package pebblestore

import (
	"bytes"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// wantPairs checks that a scan of tab from pair i on has all n of them.
func wantPairs(t *testing.T, tab *Table, i, n int) {
	t.Helper()
	var from []byte
	if i > 0 {
		from = fmt.Appendf(nil, "%06d", i)
	}
	err := tab.Scan(from, nil, func(k, v []byte) bool {
		if want := fmt.Sprintf("%06d", i); string(k) != want || !bytes.HasSuffix(v, k) {
			t.Errorf("pair %s: key %q, value %.20q", want, k, v)
			return false
		}
		i++
		return true
	})
	if err != nil || i != n {
		t.Errorf("the scan ended at %d of %d: %v", i, n, err)
	}
}

// bigPairs yields n incompressible pairs of some hundreds of bytes.
func bigPairs(n int) func(func(k, v []byte) error) error {
	return func(yield func(k, v []byte) error) error {
		for i := range n {
			k := fmt.Appendf(nil, "%06d", i)
			v := make([]byte, 0, 600)
			for x := uint64(i) + 1; len(v) < 512; x = x*6364136223846793005 + 1442695040888963407 {
				v = append(v, byte(x>>56))
			}
			if err := yield(k, append(v, k...)); err != nil {
				return err
			}
		}
		return nil
	}
}

// TestUncachedScan: a scan of a whole table does not fill the cache.
func TestUncachedScan(t *testing.T) {
	const n = 4 * cachedPairs // of half a KiB each: three files
	s := open(t, Config{Dir: t.TempDir(), FS: vfs.Default})
	tab := s.Table(1)
	ingestAll(t, s.Table(2), "other", 100)
	if err := tab.Ingest(ctx, bigPairs(n)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		wantPairs(t, tab, 0, n)
		wantPairs(t, tab, cachedPairs/2, n)
	}
	if got, most := s.db.Metrics().BlockCache.Size, int64(2*cachedPairs*600); got > most {
		t.Errorf("scans of %d MiB left %d MiB in the cache, want at most %d", n*512>>20, got>>20, most>>20)
	}
	for _, stop := range []int{cachedPairs - 1, cachedPairs, cachedPairs + 1, 2*cachedPairs + 7} {
		got := 0
		if err := tab.Scan(nil, nil, func(k, v []byte) bool { got++; return got < stop }); err != nil || got != stop {
			t.Errorf("a scan that is ended at %d: %d, %v", stop, got, err)
		}
	}
	to := fmt.Appendf(nil, "%06d", 3*cachedPairs)
	if got := keys(t, tab, nil, to); len(got) != 3*cachedPairs {
		t.Errorf("%d pairs before %s", len(got), to)
	}
}

// lastOpens fails to open tables outside Pebble after the first few.
type lastOpens struct {
	vfs.FS
	left atomic.Int64
}

func (f *lastOpens) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") && slices.Contains(o, vfs.SequentialReadsOption) && f.left.Add(-1) < 0 {
		return nil, fs.ErrNotExist
	}
	return f.FS.Open(name, o...)
}

// TestUncachedScanWithoutFiles: pairs whose files cannot be read, or are gone, are read through the
// cache.
func TestUncachedScanWithoutFiles(t *testing.T) {
	const n = 4 * cachedPairs
	f := &lastOpens{FS: vfs.Default}
	s := open(t, Config{Dir: t.TempDir(), FS: f})
	if err := s.Table(1).Ingest(ctx, bigPairs(n)); err != nil {
		t.Fatal(err)
	}
	for opens := range int64(3) {
		f.left.Store(opens)
		wantPairs(t, s.Table(1), 0, n)
	}
	if got, least := s.db.Metrics().BlockCache.Size, int64(n*512*9/10); got < least {
		t.Errorf("%d MiB are in the cache, want all %d that were read through it", got>>20, n*512>>20)
	}
}
