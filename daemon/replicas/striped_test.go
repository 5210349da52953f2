package replicas

import (
	"math/rand/v2"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// fakeTable is a manifest in memory.
type fakeTable []metadata.Attr

func (f fakeTable) Located(fn func(from manifest.Origin, a metadata.Attr) bool) error {
	for _, a := range f {
		if !fn(manifest.Origin{}, a) {
			break
		}
	}
	return nil
}

func (f fakeTable) Record(ino metadata.Ino) (sum [16]byte, a metadata.Attr, err error) {
	return stagein.CRCSum(ino.Seq()), f[ino.Seq()-1], nil
}

// Chunks derives the checksum of a chunk from its number and the file's.
func (f fakeTable) Chunks(ino metadata.Ino) (manifest.CRCs, error) {
	var b []byte
	for i := range f[ino.Seq()-1].Size {
		b = append(b, byte(i), 0, 0, byte(ino.Seq()))
	}
	return manifest.CRCs(b), nil
}

// TestChunksHaveReplicas: in each job, each chunk of a striped file has its number of replicas, never on its owner;
// readers find them where expected, and their objects do not collide with others.
func TestChunksHaveReplicas(t *testing.T) {
	const chunk = 10
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2))
		hosts := []string{"a", "b", "c", "d", "e", "f"}[:2+r.IntN(5)]
		m := cluster.NewMap(seed, hosts)
		for i := range hosts {
			m = m.WithState(metadata.NodeID(i), cluster.Up, "")
		}
		var files fakeTable
		for i := range 20 {
			a := metadata.Attr{Ino: metadata.SealedIno(1, 0, uint32(i+1)), Size: int64(r.IntN(200))}
			if a.Layout = (metadata.Layout{Kind: metadata.Local, Node: metadata.NodeID(r.IntN(len(hosts)))}); i%2 == 0 {
				a.Layout = metadata.Layout{Kind: metadata.Striped, ChunkSize: chunk, Width: uint16(r.IntN(len(hosts)))}
			}
			files = append(files, a)
		}
		n := 1 + r.IntN(len(hosts)-1)
		ds := cluster.Dataset{ID: 1, Replicas: cluster.Replicas(string(rune('0' + n)))}
		copies := make(map[fill.PieceID]int)
		var have, want amount
		for _, a := range files {
			if want.bytes += int64(n) * a.Size; a.Size > 0 {
				want.files += int64(n)
			}
		}
		for self := range metadata.NodeID(len(hosts)) {
			s, err := newSet(ds, files, m, self, nil)
			if err != nil {
				t.Fatal(err)
			}
			have.files, have.bytes = have.files+s.want.files, have.bytes+s.want.bytes
			objects := make(map[metadata.Ino]bool)
			for i := range s.files {
				f := &s.files[i]
				copies[f.PieceID]++
				owner, size, at, err := s.owned(f.PieceID)
				if err != nil || owner == self || owner != f.owner || size != f.size {
					t.Fatalf("seed %d: %v on node %d: owner %d, %d bytes, %v, want %d, %d", seed, f.PieceID, self, owner, size, err, f.owner, f.size)
				}
				if p, off := s.pieceAt(f.Ino, at(self)+size-1); p != f.PieceID || off != size-1 || s.find(p) != f {
					t.Fatalf("seed %d: %v on node %d: found %v at %d", seed, f.PieceID, self, p, off)
				}
				o := s.object(f.PieceID)
				whole := files[f.Ino.Seq()-1].Layout.Kind == metadata.Local
				if objects[o] || whole != (o == f.Ino) || !whole && (o.Part() != metadata.DirPart || o.Seq()&unfinished != 0) {
					t.Fatalf("seed %d: object %v of %v", seed, o, f.PieceID)
				}
				objects[o] = true
				sum := stagein.CRCSum(f.Ino.Seq())
				if !whole {
					sum = stagein.CRCSum(f.Chunk<<24 | f.Ino.Seq())
				}
				if got, err := s.sum(f.PieceID); err != nil || got != sum {
					t.Fatalf("seed %d: checksum of %v: %x, %v, want %x", seed, f.PieceID, got, err, sum)
				}
			}
		}
		for p, k := range copies {
			if k != n {
				t.Fatalf("seed %d: %d replicas of %v, want %d", seed, k, p, n)
			}
		}
		if have != want {
			t.Fatalf("seed %d: %+v, want %+v", seed, have, want)
		}
	}
}
