package replicas

import (
	"bytes"
	"context"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// removals calls first before the first object is removed.
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

// holder is another node that has replicas of all files.
type holder struct {
	datapath.Store
	body []byte
}

func (h holder) ReadIfPresent(_ context.Context, _ metadata.Ino, p []byte, off int64) (int, error) {
	return copy(p, h.body[off:]), nil
}

// presentReplicas is those of a node with replicas of n files with body, of which another node has replicas, too.
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
		Compare: func(context.Context, fill.PieceSum) error { return nil },
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

// TestAdoptDuringGiveBack: replicas are given back, and before they are removed, a node is lost and their files fall to
// this one. What Adopt stores stays.
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
				_, adopted[i] = r.Adopt(context.Background(), fill.PieceID{Ino: metadata.SealedIno(1, 0, uint32(i+1))})
			})
		}
	}
	if !r.GiveBack(math.MaxInt64 / 4) {
		t.Fatal("nothing was given back")
	}
	healers.Wait()
	for i, ok := range adopted {
		ino, got := metadata.SealedIno(1, 0, uint32(i+1)), make([]byte, len(body))
		n, err := r.cfg.Store.ReadAt(t.Context(), ino, got, 0)
		if !ok || err != nil || !bytes.Equal(got[:n], body) {
			t.Errorf("%v: adopted %v, and then %d of %d bytes are here, %v", ino, ok, n, len(body), err)
		}
	}
	if r.Bytes() != 0 || s.spare != 0 || s.have != (amount{}) {
		t.Errorf("%d bytes can be given back, %+v are here", r.Bytes(), s.have)
	}
}

// TestLeavingIsInherited: a replica that is being removed stays known when the map changes, whether or not the new one asks
// for it: Adopt waits for it.
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
