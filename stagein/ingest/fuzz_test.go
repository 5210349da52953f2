package ingest_test

import (
	"archive/tar"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// FuzzTar stages corrupted archives. A tree staged without an error must be the one that archive/tar finds, for any
// number of nodes; and the outcome must not depend on that number.
func FuzzTar(f *testing.F) {
	for i := range 24 {
		f.Add(uint64(i), uint16(0), uint16(i), uint8(i), i%2 == 0)
		f.Add(uint64(i), uint16(i*700+1), uint16(0), uint8(i), false)
	}
	f.Fuzz(func(t *testing.T, seed uint64, cut, flips uint16, nodes uint8, honest bool) {
		r := rand.New(rand.NewPCG(seed, 2))
		format := []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX}[r.IntN(3)]
		members := stageintest.RandomMembers(r, format, 1+r.IntN(12))
		if format == tar.FormatPAX && seed%2 == 1 {
			members = append(members, stageintest.SparseMember(r, "sparse"), stageintest.TarFile("behind", stageintest.RandBytes(r, 600)))
		}
		archive := stageintest.Spoil(stageintest.AsSparse(stageintest.WriteTar(t, format, members)), cut, flips, r, honest)
		alone, err1 := stageSpoilt(t, archive, 1)
		several, errN := stageSpoilt(t, archive, 2+int(nodes%6))
		if (err1 == nil) != (errN == nil) {
			t.Fatalf("one node: %v; several: %v", err1, errN)
		}
		if err1 != nil {
			return
		}
		stageintest.CheckTree(t, several, alone)
		want, err := stageintest.TwinTar(archive)
		if err != nil {
			t.Fatalf("staged, but archive/tar says: %v", err)
		}
		stageintest.CheckTree(t, alone, want)
	})
}

func stageSpoilt(t *testing.T, archive []byte, nodes int) (map[string]stageintest.Entry, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	got, err := jobtest.TarJob(archive, nodes).Run(ctx)
	if ctx.Err() != nil {
		t.Fatalf("%d nodes hang: %v", nodes, err)
	}
	return got, err
}
