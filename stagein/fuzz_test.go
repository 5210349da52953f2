package stagein

import (
	"archive/tar"
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// spoil cuts an archive and flips bits of it. With honest set, the sums of the
// headers are made right again, so that the flips get past them.
func spoil(archive []byte, cut, flips uint16, r *rand.Rand, honest bool) []byte {
	b := slices.Clone(archive)
	for range flips % 8 {
		i := r.IntN(len(b))
		if honest { // where headers are; archive/tar refuses odd device numbers, of files too
			i = i&^511 | r.IntN(329)
		}
		b[i%len(b)] ^= 1 << r.IntN(8)
	}
	if honest {
		for i := 0; i+512 <= len(b); i += 512 {
			if string(b[i+257:i+262]) == "ustar" {
				fixSum(b[i : i+512])
			}
		}
	}
	if cut != 0 {
		b = b[:int(cut)%(len(b)+1)]
	}
	return b
}

// FuzzTar stages spoilt archives. What is staged without an error must be what
// archive/tar finds, whatever the number of nodes; and no number may differ.
func FuzzTar(f *testing.F) {
	for i := range 24 {
		f.Add(uint64(i), uint16(0), uint16(i), uint8(i), i%2 == 0)
		f.Add(uint64(i), uint16(i*700+1), uint16(0), uint8(i), false)
	}
	f.Fuzz(func(t *testing.T, seed uint64, cut, flips uint16, nodes uint8, honest bool) {
		r := rand.New(rand.NewPCG(seed, 2))
		format := []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX}[r.IntN(3)]
		members := randomMembers(r, format, 1+r.IntN(12))
		if format == tar.FormatPAX && seed%2 == 1 {
			members = append(members, sparseMember(r, "sparse"), file("behind", randBytes(r, 600)))
		}
		archive := spoil(asSparse(writeTar(t, format, members)), cut, flips, r, honest)
		alone, err1 := stageSpoilt(t, archive, 1)
		several, errN := stageSpoilt(t, archive, 2+int(nodes%6))
		if (err1 == nil) != (errN == nil) {
			t.Fatalf("one node: %v; several: %v", err1, errN)
		}
		if err1 != nil {
			return
		}
		checkTree(t, several, alone)
		want, err := twin(archive)
		if err != nil {
			t.Fatalf("staged, but archive/tar says: %v", err)
		}
		checkTree(t, alone, want)
	})
}

func stageSpoilt(t *testing.T, archive []byte, nodes int) (map[string]entry, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	got, err := tarJob(archive, nodes).run(ctx)
	if ctx.Err() != nil {
		t.Fatalf("%d nodes hang: %v", nodes, err)
	}
	return got, err
}
