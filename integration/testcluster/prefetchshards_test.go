package testcluster

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// TestPrefetchOfShards: when a rank reads large shards in list order through its mount, remote bytes are prefetched
// piece by piece: at most half of the bytes from the network are demand reads.
func TestPrefetchOfShards(t *testing.T) {
	t.Parallel()
	NeedFUSE(t)
	const shards, budget = 8, 64 << 20
	tree, m := filepath.Join(t.TempDir(), "tree"), make(map[string][]byte)
	var names []string
	for i := range shards {
		names = append(names, fmt.Sprintf("%02d.tar", i))
		b := make([]byte, 5<<20+i*1000)
		rand.NewChaCha8([32]byte{byte(i)}).Read(b)
		m[names[i]] = b
	}
	writeTree(t, tree, m)
	x := &training{t: t}
	x.start(Config{Datasets: []job.Dataset{{Source: tree, Name: "set"}}}, accessplan.Plan{Dataset: "set", Kind: accessplan.List, Paths: names})
	e := x.engines[0]
	var other int64 // remote bytes that were read
	for _, name := range names {
		f, err := os.Open(filepath.Join(x.ms[0].Data, "set", name))
		if err != nil {
			t.Fatal(err)
		}
		st, _ := f.Stat()
		a, err := x.c.Nodes[0].Client.Getattr(t.Context(), metadata.Ino(st.Sys().(*syscall.Stat_t).Ino))
		if err != nil {
			t.Fatal(err)
		}
		remote := a.Layout.Node == 1
		for off := 0; off < len(m[name]); off += len(pieceOf(m[name], off)) {
			want := pieceOf(m[name], off)
			if remote {
				other += int64(len(want))
			}
			sha256.Sum256(want) // the rank trains
			got := make([]byte, len(want))
			if n, err := f.ReadAt(got, int64(off)); n != len(want) || string(got) != string(want) {
				t.Fatalf("%s at %d: %d bytes, %v", name, off, n, err)
			}
			if s := e.State(); s.Memory > budget {
				t.Fatalf("%d bytes in memory, ahead= is %d", s.Memory, budget)
			}
		}
		_ = f.Close() // read only
	}
	own := func() int64 { return x.c.Nodes[0].Client.Stats().ReadRemote - e.State().Prefetched }
	Eventually(t, "the rank has found most bytes of the other node prefetched", func() bool { return other > 0 && own() <= other/2 })
	s := x.c.Nodes[1].Status(t.Context()).RPC.Requests
	t.Logf("%d bytes of the other node, %d not prefetched; single reads %d, batches %d; %+v", other, own(), s[wire.OpRead], s[wire.OpReadMany], e.State())
}

// pieceOf returns the piece that a rank reads in one call.
func pieceOf(b []byte, off int) []byte { return b[off:min(off+256<<10, len(b))] }
