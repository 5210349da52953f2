package prefetch

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// shards is a dataset of large files on other nodes, with the page cache of its reader.
type shards struct {
	sizes  []int64
	on     []metadata.NodeID // the nodes that have each file whole; none: striped
	places *sources.Table
	asked  atomic.Int64 // bytes requested

	mu     sync.Mutex
	stored map[place]int // guarded by mu; bytes in the page cache
	wrong  string        // guarded by mu
}

func (s *shards) ino(i int) metadata.Ino { return metadata.SealedIno(1, 0, uint32(i)+1) }

// content returns bytes of a file: each word encodes its offset and the inode.
func (s *shards) content(ino metadata.Ino, off, n int64) []byte {
	b := make([]byte, n+16)
	for i := int64(0); i < n+8; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(off/8*8+i)^uint64(ino)<<40)
	}
	return b[off%8:][:n]
}

func (s *shards) attr(ino metadata.Ino) metadata.Attr {
	return metadata.Attr{Ino: ino, Mode: syscall.S_IFREG | 0o644, Size: s.sizes[ino.Seq()-1]}
}

// Files implements accessplan.Files.
func (s *shards) Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error {
	for i := range s.sizes {
		fn("", 0, fmt.Sprintf("%02d.tar", i), s.attr(s.ino(i)))
	}
	return nil
}

func (s *shards) Self() metadata.NodeID { return 0 }
func (s *shards) Getattr(_ context.Context, ino metadata.Ino) (metadata.Attr, error) {
	return s.attr(ino), nil
}
func (s *shards) Where(*metadata.Attr) []metadata.NodeID { return s.on }
func (s *shards) BeginRead(n int64, among []metadata.NodeID) sources.Read {
	return s.places.Begin(n, among)
}

func (s *shards) ReadMany(_ context.Context, _ metadata.NodeID, rs []datapath.RangeRead, buf []byte) error {
	for i := range rs {
		rs[i].Data, buf = buf[:rs[i].Len], buf[rs[i].Len:]
		copy(rs[i].Data, s.content(rs[i].Ino, rs[i].Off, rs[i].Len))
		s.asked.Add(rs[i].Len)
	}
	return nil
}

func (s *shards) Read(_ context.Context, a metadata.Attr, p []byte, off int64, _ stripe.ReadOpts) (int, error) {
	s.asked.Add(int64(len(p)))
	return copy(p, s.content(a.Ino, off, int64(len(p)))), nil
}

func (s *shards) Neighbours(metadata.Ino, func(metadata.Ino) bool) []metadata.Ino { return nil }
func (s *shards) Advise(context.Context, *metadata.Attr)                          {}

// Mark, Store, Direct and Drop implement Pages.
func (s *shards) Mark() uint64 { return 0 }
func (s *shards) Direct() bool { return false }
func (s *shards) Store(ino metadata.Ino, off int64, b []byte, _ uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := off + int64(len(b)); off%pageBytes != 0 || end%pageBytes != 0 && end != s.attr(ino).Size || !bytes.Equal(b, s.content(ino, off, int64(len(b)))) {
		s.wrong = fmt.Sprintf("%d bytes at %d of %v", len(b), off, ino)
	}
	s.stored[place{ino, off}] = len(b)
	return true
}
func (s *shards) Drop(ino metadata.Ino, off, _ int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.stored, place{ino, off})
}

// start runs an engine over the shards.
func (s *shards) start(t *testing.T, plan accessplan.Plan, budget int64) *Engine {
	t.Helper()
	return s.startWith(t, s, plan, budget)
}

// startWith runs an engine for a client that reads the shards.
func (s *shards) startWith(t *testing.T, c Client, plan accessplan.Plan, budget int64) *Engine {
	t.Helper()
	s.places, s.stored = sources.New(0, time.Now, nil), make(map[place]int)
	log := logrus.New()
	log.SetOutput(io.Discard)
	e := NewEngine(EngineConfig{
		Client: c, Files: s, Budget: budget, Log: log.WithField("test", t.Name()), Now: time.Now,
		Plan: func() (*accessplan.Plan, <-chan struct{}) { return &plan, nil },
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { e.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return e
}

// TestShardsInOrder: a rank that reads large shards in the order of the plan gets all bytes but the first ones from
// memory; each was fetched once, and the budget bounds the memory.
func TestShardsInOrder(t *testing.T) {
	for name, on := range map[string][]metadata.NodeID{"striped": nil, "on another node": {1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const budget, step = 64 << 20, 256 << 10
			s := &shards{sizes: []int64{9<<20 + 77, 12 << 20, 5<<20 + 4096, 10<<20 - 1}, on: on}
			e := s.start(t, accessplan.Plan{Dataset: "set", Kind: accessplan.List}, budget)
			var all int64
			for i, size := range s.sizes {
				all += size
				for off := int64(0); off < size; off += step {
					known := i > 0 || off >= pieceBytes // the reader is unknown before its first read
					for end := off; known && end < min(off+step, size); end += pieceBytes {
						e.await(t, place{s.ino(i), end / pieceBytes * pieceBytes})
					}
					b := e.Read(t.Context(), s, s.ino(i), off, step)
					if (known || b != nil) && !bytes.Equal(b, s.content(s.ino(i), off, min(step, size-off))) {
						t.Fatalf("file %d at %d: %d bytes, which are wrong: %+v", i, off, len(b), e.State())
					}
					if m := e.State().Memory; m > budget {
						t.Fatalf("%d bytes in memory, ahead= is %d", m, budget)
					}
				}
			}
			if n := s.asked.Load(); n > all {
				t.Errorf("%d bytes were fetched of files of %d bytes", n, all)
			}
			for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
				st := e.State()
				if st.Phase == accessplan.Following && st.Prefetched >= all-pieceBytes {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%+v", st)
				}
			}
		})
	}
}

// await waits until the engine has the bytes at a place.
func (e *Engine) await(t *testing.T, at place) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		e.mu.Lock()
		k := e.kept[at]
		e.mu.Unlock()
		if k != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the bytes at %d of %v were not prefetched: %+v", at.off, at.ino, e.State())
		}
	}
}

// TestNothingAhead: with ahead=0 nothing is fetched.
func TestNothingAhead(t *testing.T) {
	s := &shards{sizes: []int64{4 << 20, 4 << 20}}
	e := s.start(t, accessplan.Plan{Dataset: "set", Kind: accessplan.List}, 0)
	for i, size := range s.sizes {
		for off := int64(0); off < size; off += pieceBytes {
			if b := e.Read(t.Context(), s, s.ino(i), off, pieceBytes); b != nil {
				t.Fatal("bytes in memory")
			}
		}
	}
	if n := s.asked.Load(); n > 0 || e.State().Memory > 0 {
		t.Errorf("%d bytes were fetched", n)
	}
}

// TestRangesInOrder: ranges of one file that ranks read in a shuffled order are fetched into the page cache, as whole
// pages, before they are read.
func TestRangesInOrder(t *testing.T) {
	const records, length = 600, 30_001
	s := &shards{sizes: []int64{100 + records*length}, on: []metadata.NodeID{1}}
	plan := accessplan.Plan{Dataset: "set", Kind: accessplan.Torch, Shuffle: true, Seed: 5, Ranks: 1}
	for i := range records {
		plan.Paths = append(plan.Paths, fmt.Sprintf("00.tar:%d+%d", 100+i*length, length))
	}
	e := s.start(t, plan, 64<<20)
	order, err := plan.Epoch(0, records)
	if err != nil {
		t.Fatal(err)
	}
	ahead := 0
	for pos := range records {
		off := int64(100 + order.At(0, pos)*length)
		first, end := off/pageBytes*pageBytes, off+length
		has := func() (stored, kept bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			e.mu.Lock()
			defer e.mu.Unlock()
			at := place{s.ino(0), first}
			return s.stored[at] >= length, e.kept[at] != nil
		}
		stored, kept := has()
		for deadline := time.Now().Add(20 * time.Second); pos >= 64 && !stored && !kept; stored, kept = has() {
			if time.Now().After(deadline) {
				t.Fatalf("position %d was not prefetched: %+v", pos, e.State())
			}
			time.Sleep(time.Millisecond)
		}
		if stored {
			ahead++ // the daemon does not see this read
			continue
		}
		b := e.Read(t.Context(), s, s.ino(0), first, (end-first+pageBytes-1)/pageBytes*pageBytes)
		if b == nil {
			continue
		}
		if ahead++; !bytes.Equal(b[off-first:][:length], s.content(s.ino(0), off, length)) {
			t.Fatalf("range at %d: wrong bytes", off)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ahead < records-64 || s.wrong != "" {
		t.Errorf("%d of %d ranges were prefetched; wrong: %s", ahead, records, s.wrong)
	}
}
