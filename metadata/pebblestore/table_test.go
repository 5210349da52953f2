package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func pairs(prefix string, n int) func(func(k, v []byte) error) error {
	return func(yield func(k, v []byte) error) error {
		for i := range n {
			if err := yield(fmt.Appendf(nil, "%s%06d", prefix, i), fmt.Appendf(nil, "value %d", i)); err != nil {
				return err
			}
		}
		return nil
	}
}

func keys(t *testing.T, tab *Table, from, to []byte) []string {
	t.Helper()
	var got []string
	err := tab.Scan(from, to, func(k, v []byte) bool {
		got = append(got, string(k))
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func ingestAll(t *testing.T, tab *Table, prefix string, n int) {
	t.Helper()
	if err := tab.Ingest(ctx, pairs(prefix, n)); err != nil {
		t.Fatal(err)
	}
}

func TestTable(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, Config{FS: fs})
	a, b, last := s.Table(1), s.Table(2), s.Table(1<<16-1)
	for i, tab := range []*Table{a, b, last} {
		ingestAll(t, tab, fmt.Sprint(i, "-"), 1000)
	}
	if got := keys(t, a, nil, nil); len(got) != 1000 || got[0] != "0-000000" || got[999] != "0-000999" {
		t.Errorf("table 1 has %d keys: %.3q…", len(got), got)
	}
	if got := keys(t, b, []byte("1-000007"), []byte("1-000010")); !slices.Equal(got, []string{"1-000007", "1-000008", "1-000009"}) {
		t.Errorf("Scan = %q", got)
	}
	if got := keys(t, b, []byte("z"), []byte("a")); len(got) != 0 {
		t.Errorf("Scan of an empty range = %q", got)
	}
	if v, err := b.Get([]byte("1-000012")); err != nil || string(v) != "value 12" {
		t.Errorf("Get = %q, %v", v, err)
	}
	if _, err := b.Get([]byte("0-000012")); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Get of nothing = %v, want ENOENT", err)
	}
	ingestAll(t, b, "new", 3)
	if got := keys(t, b, nil, nil); !slices.Equal(got, []string{"new000000", "new000001", "new000002"}) {
		t.Errorf("after a second Ingest: %q", got)
	}
	ingestAll(t, b, "", 0)
	if got := keys(t, b, nil, nil); len(got) != 0 {
		t.Errorf("after an empty Ingest: %q", got)
	}
	if err := last.Drop(); err != nil {
		t.Fatal(err)
	}
	if got := keys(t, last, nil, nil); len(got) != 0 {
		t.Errorf("after Drop: %q", got)
	}
	if got := keys(t, a, nil, nil); len(got) != 1000 {
		t.Errorf("table 1 has %d keys after changes of others", len(got))
	}
	if left, err := fs.List("meta/ingest"); err != nil || len(left) != 0 {
		t.Errorf("files left behind: %q, %v", left, err)
	}
}

func TestTableStopsScan(t *testing.T) {
	tab := open(t, Config{}).Table(1)
	ingestAll(t, tab, "", 10)
	n := 0
	if err := tab.Scan(nil, nil, func(k, v []byte) bool { n++; return n < 4 }); err != nil || n != 4 {
		t.Errorf("Scan called %d times, %v, want 4", n, err)
	}
}

func TestIngestAllOrNothing(t *testing.T) {
	fs := vfs.NewMem()
	tab := open(t, Config{FS: fs}).Table(1)
	ingestAll(t, tab, "old", 5)
	boom := errors.New("boom")
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	tests := []struct {
		name string
		ctx  context.Context
		src  func(yield func(k, v []byte) error) error
		want error
	}{
		{"source breaks", ctx, func(y func(k, v []byte) error) error { return errors.Join(pairs("new", 100)(y), boom) }, boom},
		{"out of order", ctx, func(y func(k, v []byte) error) error { return errors.Join(pairs("b", 3)(y), pairs("a", 3)(y)) }, syscall.EINVAL},
		{"a key twice", ctx, func(y func(k, v []byte) error) error {
			_ = y([]byte("k"), nil)
			_ = y([]byte("k"), nil)
			return nil // swallows the error
		}, syscall.EINVAL},
		{"cancelled", cancelled, pairs("new", 5000), syscall.EINTR},
		{"cancelled early", cancelled, pairs("new", 1), syscall.EINTR},
	}
	for _, tt := range tests {
		if err := tab.Ingest(tt.ctx, tt.src); !errors.Is(err, tt.want) {
			t.Errorf("%s: Ingest = %v, want %v", tt.name, err, tt.want)
		}
		if got := keys(t, tab, nil, nil); len(got) != 5 || got[0] != "old000000" {
			t.Errorf("%s: the table has %q", tt.name, got)
		}
		if left, err := fs.List("meta/ingest"); err != nil || len(left) != 0 {
			t.Errorf("%s: files left behind: %q, %v", tt.name, left, err)
		}
	}
}

// TestIngestCrash: after a crash at any moment the table is either the old or the new one.
func TestIngestCrash(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := open(t, Config{FS: fs})
	ingestAll(t, s.Table(1), "old", 300)
	rng := rand.New(rand.NewPCG(5, 5))
	var clones []*vfs.MemFS
	err := s.Table(1).Ingest(ctx, func(yield func(k, v []byte) error) error {
		clones = append(clones, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng}))
		err := pairs("new", 400)(yield)
		clones = append(clones, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng}))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, clone := range clones {
		if got := keys(t, open(t, Config{FS: clone}).Table(1), nil, nil); len(got) != 300 {
			t.Errorf("crash %d while ingesting: %d keys, want the 300 old ones", i, len(got))
		}
	}
	after := open(t, Config{FS: fs.CrashClone(vfs.CrashCloneCfg{})})
	if got := keys(t, after.Table(1), nil, nil); len(got) != 400 {
		t.Errorf("crash after Ingest: %d keys, want the 400 new ones", len(got))
	}
	if left, err := after.cfg.FS.List("meta/ingest"); err != nil || len(left) != 0 {
		t.Errorf("files left behind: %q, %v", left, err)
	}
}

// BenchmarkGet measures a lookup in a cached table.
func BenchmarkGet(b *testing.B) {
	tab := open(b, Config{Dir: b.TempDir(), FS: vfs.Default}).Table(1)
	if err := tab.Ingest(ctx, pairs("", 200_000)); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		if _, err := tab.Get(fmt.Appendf(nil, "%06d", i*7919%200_000)); err != nil {
			b.Fatal(err)
		}
	}
}
