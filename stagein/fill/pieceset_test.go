package fill

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

func randomPiece(r *rand.Rand) PieceID {
	p := PieceID{Ino: metadata.SealedIno(3, uint16(r.IntN(3)), uint32(r.IntN(5000)))}
	if r.IntN(4) == 0 {
		p.Chunk = uint32(r.IntN(9))
	}
	return p
}

// TestResidents compares the piece set with a plain set.
func TestResidents(t *testing.T) {
	r := stageintest.Rand(t)
	have, twin := newPieceSet(), map[PieceID]bool{}
	for range 20_000 {
		p := randomPiece(r)
		if have.has(p) != twin[p] {
			t.Fatalf("has(%v) = %v", p, !twin[p])
		}
		if r.IntN(2) == 0 {
			have.add(p)
			twin[p] = true
		}
	}
	if have.n != int64(len(twin)) {
		t.Errorf("%d pieces, want %d", have.n, len(twin))
	}
}

// TestJournal: added pieces are found again however much is cut from the end; with another manifest or after another
// boot nothing is found.
func TestJournal(t *testing.T) {
	r := stageintest.Rand(t)
	path := filepath.Join(t.TempDir(), "journal")
	type entry struct {
		p   PieceID
		sum [16]byte
	}
	open := func(digest, boot string) (got []entry, j *journal) {
		t.Helper()
		j, err := openJournal(path, digest, boot, func(p PieceID, sum [16]byte) { got = append(got, entry{p, sum}) })
		if err != nil {
			t.Fatal(err)
		}
		return got, j
	}
	var want []entry
	for round := range 5 {
		got, j := open("d", "b")
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("round %d: %d entries, want %d", round, len(got), len(want))
		}
		for range 700 {
			e := entry{p: randomPiece(r)}
			copy(e.sum[:], stageintest.RandBytes(r, 16))
			if err := j.add(e.p, e.sum); err != nil {
				t.Fatal(err)
			}
			want = append(want, e)
		}
		if err := j.close(); err != nil {
			t.Fatal(err)
		}
		cut := int64(1 + r.IntN(40))
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, info.Size()-cut); err != nil {
			t.Fatal(err)
		}
		want = want[:len(want)-int((cut+journalEntry-1)/journalEntry)]
	}
	for _, other := range [][2]string{{"d", "other"}, {"other", "b"}} {
		got, j := open(other[0], other[1])
		if len(got) != 0 {
			t.Errorf("the journal of %v has %d entries of another", other, len(got))
		}
		if err := j.close(); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzJournal(f *testing.F) {
	head := journalHeader("d", "b")
	f.Add([]byte{})
	f.Add(head)
	f.Add(append(bytes.Clone(head), make([]byte, 2*journalEntry)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := int64(0)
		good, err := readJournal(bytes.NewReader(b), head, func(PieceID, [16]byte) { n++ })
		if err != nil || good > int64(len(b)) || good != 0 && good != journalHead+n*journalEntry || good == 0 && n > 0 {
			t.Errorf("%d bytes: %d entries in %d good ones, %v", len(b), n, good, err)
		}
	})
}
