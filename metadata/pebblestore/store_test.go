package pebblestore

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/metadatatest"
)

func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = "meta"
	}
	if cfg.FS == nil {
		cfg.FS = vfs.NewMem()
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func TestConformance(t *testing.T) {
	metadatatest.Run(t, func(t *testing.T) metadata.Store { return open(t, Config{}) })
}

func TestHalves(t *testing.T) {
	metadatatest.RunHalves(t, func(t *testing.T) metadata.NodeStore { return open(t, Config{}) })
}

func BenchmarkCreate(b *testing.B) {
	for _, sync := range []bool{false, true} {
		name := "written"
		if sync {
			name = "synced"
		}
		b.Run(name, func(b *testing.B) {
			s := open(b, Config{Dir: b.TempDir(), FS: vfs.Default, Sync: sync})
			var buf [16]byte
			for i := 0; b.Loop(); i++ {
				for j := range buf {
					buf[j] = 'a' + byte(i>>(4*j)&15)
				}
				if _, err := s.Create(context.Background(), metadata.RootIno, string(buf[:]), metadata.New{Mode: 0o644}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
