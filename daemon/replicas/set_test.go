package replicas

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// testSet returns a set of n files of different sizes.
func testSet(n int) *set {
	s := &set{id: 1, m: cluster.NewMap(7, []string{"a", "b", "c"}), n: 1, ceiling: math.MaxUint64}
	for i := range n {
		ino := metadata.SealedIno(1, 0, uint32(i+1))
		p := fill.PieceID{Ino: ino}
		f := file{PieceID: p, pos: s.position(p), size: 1 + int64(i*37%1000)}
		s.files = append(s.files, f)
		s.want.files, s.want.bytes = s.want.files+1, s.want.bytes+f.size
	}
	s.sort()
	return s
}

// counted recounts the replicas in a set.
func (s *set) counted() (a amount) {
	for _, f := range s.files {
		if f.state == present {
			a.files, a.bytes = a.files+1, a.bytes+f.size
		}
	}
	return a
}

// TestMark: at any moment while replicas are made and given back, a mark claims only existing replicas, changes seldom,
// and covers all replicas in the end.
func TestMark(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := testSet(500)
		marks := make(map[uint64]bool)
		for s.made < len(s.files) {
			for range min(1+r.IntN(20), len(s.files)-s.made) {
				s.put(&s.files[s.made], present)
				s.made++
			}
			m := s.mark(2)
			if marks[m.Below] = true; m.Files > s.have.files || m.Bytes > s.have.bytes {
				t.Fatalf("seed %d: mark %+v of %+v", seed, m, s.have)
			}
			for _, f := range s.files {
				if f.pos < m.Below && f.state != present {
					t.Fatalf("seed %d: mark %x claims a file at %x", seed, m.Below, f.pos)
				}
			}
		}
		if len(marks) > 65 {
			t.Errorf("seed %d: %d different marks", seed, len(marks))
		}
		if m := s.mark(2); m.Below != math.MaxUint64 || m.Files != 500 || m.Bytes != m.OfBytes {
			t.Errorf("seed %d: mark %+v at the end", seed, m)
		}
	}
}

// TestPickLast: the last replicas of the largest set are given back, as many as needed; the mark and the spare bytes
// follow, and these replicas are not made again.
func TestPickLast(t *testing.T) {
	small, large := testSet(50), testSet(500)
	small.id = 2
	x := New(Config{Stored: nothing})
	x.sets[2], x.sets[1] = small, large
	for _, s := range x.sets {
		for i := range s.files {
			x.bytes.Add(s.put(&s.files[i], present))
		}
		s.made = len(s.files)
	}
	before := large.have
	of, ps := x.pickLast(20_000)
	inos := of.wholes(ps...)
	freed := before.bytes - large.have.bytes
	if of != large || freed < 20_000 || freed > 21_000 || int64(len(inos)) != before.files-large.have.files || !slices.IsSorted(inos) {
		t.Fatalf("%d files of set %d, %d bytes", len(inos), of.id, freed)
	}
	if x.Bytes() != small.spare+large.spare || large.spare != large.have.bytes || large.have != large.counted() || large.given != freed {
		t.Errorf("%d bytes in all, %+v counted %+v", x.Bytes(), large.have, large.counted())
	}
	m := large.mark(0)
	for _, f := range large.files {
		if (f.pos < m.Below) != (f.state == present) {
			t.Fatalf("a file at %x is in state %d below the mark %x", f.pos, f.state, m.Below)
		}
	}
	if large.find(ps[0]).state != leaving {
		t.Error("a replica that was given back is scheduled again")
	}
	for x.Bytes() > 0 {
		if _, inos := x.pickLast(1 << 40); len(inos) == 0 {
			t.Fatalf("%d bytes are left that cannot be given back", x.Bytes())
		}
	}
	if _, inos := x.pickLast(1); len(inos) != 0 {
		t.Errorf("an empty set gave back %d files", len(inos))
	}
}

// TestKept: a file that this node stores as its own counts as present, and cannot be given back.
func TestKept(t *testing.T) {
	s := testSet(10)
	x := New(Config{Stored: nothing})
	x.sets[1] = s
	for i := range s.files {
		x.bytes.Add(s.put(&s.files[i], []state{present, kept}[i%2]))
	}
	if s.have.files != 10 || s.have.bytes != s.want.bytes || x.Bytes() != s.spare || s.spare >= s.have.bytes {
		t.Errorf("%+v, %d spare, %d in all", s.have, s.spare, x.Bytes())
	}
	if _, inos := x.pickLast(math.MaxInt64); len(inos) != 5 || x.Bytes() != 0 || s.have.files != 5 {
		t.Errorf("%d files given back, %d bytes left, %+v", len(inos), x.Bytes(), s.have)
	}
}

// TestClaim: after a change of the map, a node's mark does not shrink while the node looks for
// more replicas; it shrinks when replicas are given back.
func TestClaim(t *testing.T) {
	was := testSet(300)
	for i := range was.files {
		was.put(&was.files[i], present)
	}
	was.made = len(was.files)
	was.claim = was.mark(0).Below
	if was.made = 0; was.mark(0).Files != 300 { // missing replicas are tried again
		t.Errorf("mark %+v, with 300 replicas", was.mark(0))
	}
	was.made = len(was.files)
	s := testSet(400)
	s.inherit(was)
	if m := s.mark(0); m.Below != math.MaxUint64 {
		t.Errorf("mark %x after a change of the map", m.Below)
	}
	x := New(Config{Stored: nothing})
	x.sets[1] = s
	x.pickLast(1)
	if m := s.mark(0); m.Below != s.ceiling || s.ceiling == math.MaxUint64 {
		t.Errorf("mark %x, but replicas from %x on were given back", m.Below, s.ceiling)
	}
}

// TestInherit: after a change of the map, existing replicas keep their state even if the map no longer asks for them;
// missing ones are made.
func TestInherit(t *testing.T) {
	was := testSet(300)
	for i := range was.files {
		f := &was.files[i]
		f.sum[0], f.verified = byte(i), i%2 == 0
		switch i % 3 {
		case 0:
			was.put(f, present)
			f.verified = true
		case 1:
			was.put(f, present)
			was.put(f, gone)
		}
	}
	s := testSet(600) // twice as many
	kept := s.files[:0]
	for _, f := range s.files { // half of the old ones
		if f.Ino.Seq() > 150 {
			kept = append(kept, f)
		}
	}
	s.files = kept
	s.inherit(was)
	if s.have != was.have || s.have != s.counted() || s.spare != was.spare || s.spare != s.have.bytes {
		t.Errorf("%+v counted %+v, want %+v", s.have, s.counted(), was.have)
	}
	for _, f := range was.files {
		x := s.find(f.PieceID)
		switch {
		case x == nil && (f.state == present || f.Ino.Seq() > 150):
			t.Fatalf("%v in state %d is lost", f.Ino, f.state)
		case x != nil && (x.state != f.state || x.sum != f.sum || x.verified != f.verified):
			t.Fatalf("%+v became %+v", f, x)
		}
	}
	if !slices.IsSortedFunc(s.files, func(a, b file) int {
		if a.pos < b.pos {
			return -1
		}
		return 1
	}) {
		t.Error("the files are not in order")
	}
}
