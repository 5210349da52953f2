package replicas

import (
	"bytes"
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// removals calls first ahead of the first removal of an object.
type removals struct {
	chunkstore.FS
	once  sync.Once
	first func()
}

func (h *removals) Remove(path string) error {
	if h.first != nil && !strings.Contains(path, "probe") {
		h.once.Do(h.first)
		runtime.Gosched()
	}
	return h.FS.Remove(path)
}

// holder is another node, which has replicas of all files.
type holder struct {
	datapath.Store
	body []byte
}

func (h holder) ReadIfPresent(_ context.Context, _ metadata.Ino, p []byte, off int64) (int, error) {
	return copy(p, h.body[off:]), nil
}

// nothing is a Stored function of a node that has no pieces of its own.
func nothing(fill.PieceID) bool { return false }

// presentReplicas returns the replicas of n files with body; another node has replicas of them, too.
func presentReplicas(t *testing.T, n int, body []byte, fsys chunkstore.FS) (*Replicas, *set) {
	t.Helper()
	store, err := chunkstore.Open(chunkstore.Config{Dirs: []string{t.TempDir()}, FS: fsys})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() }) // of a test
	here := nodetest.New(t, 1, 3)
	r := New(Config{
		Node: here, Store: store, Put: store.WriteAt, Of: func(metadata.NodeID) datapath.Store { return holder{body: body} },
		Stored: nothing, Coming: nothing, Compare: func(context.Context, fill.PieceSum) error { return nil },
	})
	s := &set{id: 1, m: here.View().Map, n: 2, ceiling: math.MaxUint64, striped: make(map[metadata.Ino]*stripes)}
	sum := stagein.NewSummer()
	_, _ = sum.Write(body) // never fails
	var files fakeTable
	for i := range n {
		a := metadata.Attr{Ino: metadata.SealedIno(1, 0, uint32(i+1)), Size: int64(len(body)), Layout: metadata.Layout{Kind: metadata.Local}}
		files = append(files, a)
		s.add(fill.PieceID{Ino: a.Ino}, a.Size, 0)
		if err := store.WriteAt(t.Context(), a.Ino, body, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.sort()
	s.table = files
	for i := range s.files {
		s.files[i].sum = sum.Sum()
		r.bytes.Add(s.put(&s.files[i], present))
	}
	s.made = len(s.files)
	r.sets[1], r.marks[1] = s, map[metadata.NodeID]Mark{2: {Node: 2, Below: math.MaxUint64}}
	r.on.Store(true)
	return r, s
}

// holds reports whether the object of ino contains body.
func (r *Replicas) holds(t *testing.T, ino metadata.Ino, body []byte) bool {
	t.Helper()
	got := make([]byte, len(body)+1)
	n, err := r.cfg.Store.ReadAt(t.Context(), ino, got, 0)
	if err != nil {
		t.Errorf("%v: %v", ino, err)
	}
	return bytes.Equal(got[:n], body)
}

// TestAdoptDuringGiveBack: replicas are given back; before they are removed, a node is lost and this one takes over its
// files. What Adopt stores is kept.
func TestAdoptDuringGiveBack(t *testing.T) {
	const files = 64
	body := bytes.Repeat([]byte("replica "), 1000)
	h := &removals{FS: chunkstore.Machine}
	r, s := presentReplicas(t, files, body, h)
	var adopted [files]bool
	var healers sync.WaitGroup
	h.first = func() {
		for i := range files {
			healers.Go(func() {
				_, adopted[i], _ = r.Adopt(context.Background(), fill.PieceID{Ino: metadata.SealedIno(1, 0, uint32(i+1))}, [16]byte{})
			})
		}
	}
	if !r.GiveBack(math.MaxInt64 / 4) {
		t.Fatal("nothing was given back")
	}
	healers.Wait()
	for i, ok := range adopted {
		if ino := metadata.SealedIno(1, 0, uint32(i+1)); !ok || !r.holds(t, ino, body) {
			t.Errorf("%v: adopted %v, and then its bytes are not all here", ino, ok)
		}
	}
	if r.Bytes() != 0 || s.spare != 0 || s.have != (amount{}) {
		t.Errorf("%d bytes can be given back, %+v are here", r.Bytes(), s.have)
	}
}

// TestAdoptOfOtherBytes: a piece with a known checksum is verified before any of it is stored; for other pieces, Adopt
// reports when it stored part of a wrong one.
func TestAdoptOfOtherBytes(t *testing.T) {
	body := bytes.Repeat([]byte("replica "), 1000)
	r, s := presentReplicas(t, 1, body, chunkstore.Machine)
	p, sum := s.files[0].PieceID, s.files[0].sum
	r.move(p, absent, present)
	puts := 0
	r.cfg.Put = func(ctx context.Context, ino metadata.Ino, b []byte, off int64) error {
		puts++
		return r.cfg.Store.WriteAt(ctx, ino, b, off)
	}
	theirs := bytes.Clone(body)
	r.cfg.Of = func(metadata.NodeID) datapath.Store { return holder{body: theirs} }
	theirs[100] ^= 1
	if _, ok, soiled := r.Adopt(t.Context(), p, sum); ok || soiled || puts > 0 {
		t.Errorf("other bytes than are wanted: adopted %v, soiled %v, %d writes", ok, soiled, puts)
	}
	if _, ok, soiled := r.Adopt(t.Context(), p, [16]byte{}); ok || !soiled {
		t.Errorf("other bytes than the replica had: adopted %v, soiled %v", ok, soiled)
	}
	theirs[100] ^= 1
	for _, want := range [][16]byte{sum, {}} {
		if got, ok, soiled := r.Adopt(t.Context(), p, want); !ok || soiled || got != sum || !r.holds(t, p.Ino, body) {
			t.Errorf("the right bytes: adopted %v, soiled %v", ok, soiled)
		}
	}
}

// TestLeavingIsInherited: a replica that is being removed stays in the set when the map changes, whether or not the new
// map asks for it, since Adopt waits for the removal.
func TestLeavingIsInherited(t *testing.T) {
	was, s := testSet(300), testSet(300)
	for i := range was.files {
		was.put(&was.files[i], present)
		was.put(&was.files[i], leaving)
	}
	s.files = s.files[:150:150]
	s.inherit(was)
	for _, f := range was.files {
		if x := s.find(f.PieceID); x == nil || x.state != leaving {
			t.Fatalf("%v that was leaving is %+v", f.Ino, x)
		}
	}
	if s.have != (amount{}) || s.spare != 0 {
		t.Errorf("%+v are here, %d bytes to give back", s.have, s.spare)
	}
}

// TestOwnIsNotRemoved: a file that this node has stored as its own, and of which it had a replica, is kept by GiveBack
// and by Verify. If a set has no other replicas, another set gives back.
func TestOwnIsNotRemoved(t *testing.T) {
	body := []byte("replica")
	r, s := presentReplicas(t, 10, body, chunkstore.Machine)
	r.cfg.Stored = func(p fill.PieceID) bool { return p.Ino.Seq()%2 == 0 }
	r.cfg.Compare = func(context.Context, fill.PieceSum) error { return syscall.EIO }
	verified := fill.PieceID{Ino: metadata.SealedIno(1, 0, 2)}
	if err := r.Verify(t.Context(), verified); !errors.Is(err, ErrNotHere) || s.find(verified).state != kept {
		t.Errorf("Verify = %v, %+v", err, s.find(verified))
	}
	if !r.GiveBack(math.MaxInt64/4) || r.GiveBack(math.MaxInt64/4) || r.Bytes() != 0 || s.have.files != 5 {
		t.Errorf("%d bytes can be given back, %+v are here", r.Bytes(), s.have)
	}
	for seq := range uint32(10) {
		ino := metadata.SealedIno(1, 0, seq+1)
		if own := ino.Seq()%2 == 0; r.holds(t, ino, body) != own {
			t.Errorf("%v is here: %v", ino, !own)
		}
	}

	small, large := testSet(5), testSet(50)
	small.id = 2
	x := New(Config{Stored: func(fill.PieceID) bool { return true }})
	small.striped = map[metadata.Ino]*stripes{}
	for i := range small.files {
		small.striped[small.files[i].Ino] = &stripes{size: 1, chunk: 1} // the replica of a chunk has its own object
	}
	x.sets[2], x.sets[1] = small, large
	for _, s := range x.sets {
		for i := range s.files {
			x.bytes.Add(s.put(&s.files[i], present))
		}
	}
	if of, ps := x.pickLast(math.MaxInt64); of != small || len(ps) != 5 || x.Bytes() != 0 || large.have.files != 50 {
		t.Errorf("%d files go, %d bytes are left, %+v", len(ps), x.Bytes(), large.have)
	}
}

// TestPieceIsClaimed: a piece whose replica exists or is being removed is stored only by Adopt; for any other piece no
// replica is made any more.
func TestPieceIsClaimed(t *testing.T) {
	s := testSet(6)
	x := New(Config{Stored: nothing})
	x.sets[1] = s
	for i, c := range []struct {
		was, is state
		ok      bool
	}{{absent, gone, true}, {present, present, false}, {leaving, leaving, false}, {gone, gone, true}, {traded, gone, true}, {kept, kept, true}} {
		f := &s.files[i]
		x.bytes.Add(s.put(f, c.was))
		if ok := x.MayStore(f.PieceID); ok != c.ok || f.state != c.is {
			t.Errorf("MayStore in state %d = %v, state %d, want %v, %d", c.was, ok, f.state, c.ok, c.is)
		}
	}
	if p := (fill.PieceID{Ino: metadata.SealedIno(1, 0, 7)}); !x.MayStore(p) {
		t.Errorf("%v, of which no replica is asked for, is not claimed", p)
	}
}

// TestHalfStoredIsNotRemoved: a file that this node took over, and is still storing when the owner returns, is not
// taken for a bad replica left by an earlier daemon.
func TestHalfStoredIsNotRemoved(t *testing.T) {
	body := []byte("replica")
	r, s := presentReplicas(t, 2, body, chunkstore.Machine)
	r.cfg.Compare = func(context.Context, fill.PieceSum) error { return syscall.EIO }
	coming := s.files[0].PieceID
	r.cfg.Coming = func(p fill.PieceID) bool { return p == coming }
	for _, f := range s.files {
		r.bytes.Add(s.put(s.find(f.PieceID), absent))
		_, _, err := r.left(t.Context(), s, f, f.sum)
		if own := f.PieceID == coming; r.holds(t, f.Ino, body) != own || errors.Is(err, syscall.EEXIST) != own {
			t.Errorf("%v, which this node is storing: %v, is here: %v, %v", f.Ino, own, !own, err)
		}
	}
}
