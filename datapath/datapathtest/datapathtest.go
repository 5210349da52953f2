// Package datapathtest is the test suite for every datapath.Store, local or remote: it tests what the interface
// comments guarantee.
package datapathtest

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// Run runs the suite. open returns an empty store for one test.
func Run(t *testing.T, open func(t *testing.T) datapath.Store) {
	for _, c := range []struct {
		name string
		test func(*T)
	}{
		{"Absent", absent},
		{"ReadBack", readBack},
		{"ShortRead", shortRead},
		{"Holes", holes},
		{"LargeWrite", largeWrite},
		{"Limits", limits},
		{"Truncate", truncate},
		{"Remove", remove},
		{"Space", space},
		{"Allocate", allocate},
		{"Punch", punch},
		{"Data", data},
		{"Inos", inos},
		{"Cancelled", cancelled},
		{"Parallel", parallel},
		{"Model", model},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(&T{T: t, s: open(t)}) })
	}
}

// T is a test with its store.
type T struct {
	*testing.T
	s datapath.Store
}

const file = metadata.FirstIno

func (t *T) ctx() context.Context { return t.Context() }

func (t *T) write(ino metadata.Ino, p []byte, off int64) {
	t.Helper()
	if err := t.s.WriteAt(t.ctx(), ino, p, off); err != nil {
		t.Fatalf("WriteAt(%v, %d bytes, %d) = %v", ino, len(p), off, err)
	}
}

// reads checks that a read of n bytes at off gives want.
func (t *T) reads(ino metadata.Ino, n int, off int64, want []byte) {
	t.Helper()
	p := bytes.Repeat([]byte{0xee}, n)
	got, err := t.s.ReadAt(t.ctx(), ino, p, off)
	if err != nil || !bytes.Equal(p[:got], want) {
		t.Fatalf("ReadAt(%v, %d, %d) = %d bytes %.20q, %v, want %d bytes %.20q", ino, n, off, got, p[:got], err, len(want), want)
	}
}

func (t *T) ok(what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s = %v", what, err)
	}
}

func (t *T) fails(what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s = %v, want %v", what, err, want)
	}
}

func (t *T) space() datapath.Space {
	t.Helper()
	sp, err := t.s.Space(t.ctx())
	t.ok("Space", err)
	return sp
}

func pattern(n int, seed uint64) []byte {
	p := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

func absent(t *T) {
	t.reads(file, 10, 0, nil)
	t.reads(file, 10, 1<<40, nil)
	t.ok("Sync of no object", t.s.Sync(t.ctx(), file))
	t.ok("Truncate of no object", t.s.Truncate(t.ctx(), file, 5))
	t.ok("Remove of no object", t.s.Remove(t.ctx(), file))
	t.reads(file, 10, 0, nil)
}

func readBack(t *T) {
	p := pattern(100_000, 1)
	t.write(file, p, 0)
	t.reads(file, len(p), 0, p)
	t.reads(file, 1000, 4095, p[4095:5095])
	t.write(file, []byte("over"), 4094)
	copy(p[4094:], "over")
	t.reads(file, len(p), 0, p)
	t.ok("Sync", t.s.Sync(t.ctx(), file))
	t.reads(file, len(p), 0, p)
	t.write(file, nil, 0)
	t.reads(file, 0, 0, nil)
	t.reads(file, len(p), 0, p)
}

func shortRead(t *T) {
	t.write(file, []byte("hello"), 0)
	t.reads(file, 10, 0, []byte("hello"))
	t.reads(file, 10, 4, []byte("o"))
	t.reads(file, 10, 5, nil)
	t.reads(file, 10, 6, nil)
}

func holes(t *T) {
	const far = 64 << 20
	t.write(file, []byte("end"), far)
	t.reads(file, 8, far-4, []byte("\x00\x00\x00\x00end"))
	t.reads(file, 4096, 1<<20, make([]byte, 4096))
	t.write(file, []byte("mid"), far/2)
	t.reads(file, 5, far/2-1, []byte("\x00mid\x00"))
	if used := t.space().Used; used > 1<<20 {
		t.Errorf("two small writes with holes between use %d bytes", used)
	}
}

func largeWrite(t *T) {
	p := pattern(3<<20+17, 2)
	t.write(file, p, 5)
	t.reads(file, len(p)+5, 0, append(make([]byte, 5), p...))
}

func limits(t *T) {
	t.fails("WriteAt below 0", t.s.WriteAt(t.ctx(), file, []byte("x"), -1), syscall.EINVAL)
	t.fails("WriteAt past the end of numbers", t.s.WriteAt(t.ctx(), file, []byte("x"), math.MaxInt64), syscall.EFBIG)
	_, err := t.s.ReadAt(t.ctx(), file, make([]byte, 1), -1)
	t.fails("ReadAt below 0", err, syscall.EINVAL)
	t.fails("Truncate below 0", t.s.Truncate(t.ctx(), file, -1), syscall.EINVAL)
	t.write(file, []byte("x"), 0)
	t.reads(file, 2, math.MaxInt64-1, nil)
}

func truncate(t *T) {
	p := pattern(10_000, 3)
	t.write(file, p, 0)
	t.ok("Truncate", t.s.Truncate(t.ctx(), file, 20_000))
	t.reads(file, 20_000, 0, p)
	t.ok("Truncate", t.s.Truncate(t.ctx(), file, 5000))
	t.reads(file, 20_000, 0, p[:5000])
	t.write(file, []byte("z"), 6000)
	want := append(append(bytes.Clone(p[:5000]), make([]byte, 1000)...), 'z')
	t.reads(file, 20_000, 0, want)
	t.ok("Truncate", t.s.Truncate(t.ctx(), file, 0))
	t.reads(file, 10, 0, nil)
	t.reads(file, 10, 5000, nil)
}

func remove(t *T) {
	t.write(file, []byte("old object"), 0)
	t.ok("Remove", t.s.Remove(t.ctx(), file))
	t.reads(file, 10, 0, nil)
	t.ok("Remove", t.s.Remove(t.ctx(), file))
	t.write(file, []byte("new"), 1)
	t.reads(file, 20, 0, []byte("\x00new"))
}

func space(t *T) {
	before := t.space()
	if before.Used != 0 || before.Objects != 0 || before.Capacity <= 0 || before.Free <= 0 {
		t.Fatalf("Space of an empty store = %+v", before)
	}
	t.write(file, pattern(1<<20, 4), 0)
	t.write(file+1, pattern(100, 5), 0)
	t.write(file, pattern(1<<19, 6), 1<<18) // overwrites existing data
	full := t.space()
	if full.Objects != 2 || full.Used < 1<<20+100 || full.Used > 1<<20+1<<18 || full.Capacity < full.Used {
		t.Errorf("Space with 1 MiB and 100 bytes = %+v", full)
	}
	t.ok("Truncate", t.s.Truncate(t.ctx(), file, 1<<19))
	if cut := t.space(); cut.Used > full.Used-1<<19 || cut.Objects != 2 {
		t.Errorf("Space after a cut by half = %+v, was %+v", cut, full)
	}
	t.ok("Remove", t.s.Remove(t.ctx(), file))
	t.ok("Remove", t.s.Remove(t.ctx(), file+1))
	if after := t.space(); after.Used != 0 || after.Objects != 0 {
		t.Errorf("Space after the last object = %+v", after)
	}
}

// inos writes objects whose inode numbers differ in about one bit.
func inos(t *T) {
	all := []metadata.Ino{
		metadata.LiveIno(0, 1024), metadata.LiveIno(0, 1025), metadata.LiveIno(1, 1024), metadata.LiveIno(metadata.MaxNodes-1, metadata.MaxCounter),
		metadata.SealedIno(1, 0, 0), metadata.SealedIno(1, 0, 1), metadata.SealedIno(1, 1, 0), metadata.SealedIno(2, 0, 0),
		metadata.SealedIno(1, 0, 1024), metadata.SealedIno(metadata.MaxNodes-1, metadata.DirPart, 1<<32-1), metadata.LiveIno(0, 1<<32),
	}
	for _, i := range all {
		t.write(i, []byte(i.String()), 0)
	}
	for _, i := range all {
		t.reads(i, 100, 0, []byte(i.String()))
	}
	t.ok("Remove", t.s.Remove(t.ctx(), all[0]))
	for _, i := range all[1:] {
		t.reads(i, 100, 0, []byte(i.String()))
	}
}

func cancelled(t *T) {
	ctx, cancel := context.WithCancel(t.ctx())
	cancel()
	t.fails("WriteAt", t.s.WriteAt(ctx, file, []byte("x"), 0), syscall.EINTR)
	_, err := t.s.ReadAt(ctx, file, make([]byte, 1), 0)
	t.fails("ReadAt", err, syscall.EINTR)
	ctx, cancel = context.WithDeadline(t.ctx(), time.Unix(1, 0))
	defer cancel()
	t.fails("WriteAt", t.s.WriteAt(ctx, file, []byte("x"), 0), syscall.ETIMEDOUT)
}

// parallel runs writers of disjoint ranges, readers, and removals of other objects.
func parallel(t *T) {
	const writers, each = 8, 64 << 10
	want := pattern(writers*each, 7)
	errs := make(chan error, 2*writers) // one for each goroutine
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for off := w * each; off < (w+1)*each; off += 1000 {
				end := min(off+1000, (w+1)*each)
				if err := t.s.WriteAt(t.ctx(), file, want[off:end], int64(off)); err != nil {
					errs <- err
					return
				}
			}
		})
		wg.Go(func() {
			for i := range 50 {
				ino := metadata.Ino(file + 1 + metadata.Ino(i%3))
				if err := errors.Join(t.s.WriteAt(t.ctx(), ino, want[:5000], 0), t.s.Remove(t.ctx(), ino)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	t.reads(file, len(want), 0, want)
	t.ok("Remove", t.s.Remove(t.ctx(), file))
	if sp := t.space(); sp.Used != 0 || sp.Objects != 0 {
		t.Errorf("Space after all is removed = %+v", sp)
	}
}

// model runs random operations against byte slices.
func model(t *T) {
	const seed = 20
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	want := map[metadata.Ino][]byte{}
	for range 600 {
		ino := metadata.Ino(file + metadata.Ino(r.IntN(4)))
		off := r.IntN(60_000)
		switch m := want[ino]; r.IntN(10) {
		case 0:
			t.ok("Remove", t.s.Remove(t.ctx(), ino))
			delete(want, ino)
		case 1:
			t.ok("Truncate", t.s.Truncate(t.ctx(), ino, int64(off)))
			want[ino] = m[:min(off, len(m))]
		case 2, 3, 4, 5:
			p := pattern(1+r.IntN(9000), r.Uint64())
			t.write(ino, p, int64(off))
			grown := make([]byte, max(len(m), off+len(p)))
			copy(grown, m)
			copy(grown[off:], p)
			want[ino] = grown
		default:
			n := r.IntN(20_000)
			t.reads(ino, n, int64(off), m[min(off, len(m)):min(off+n, len(m))])
		}
	}
	for ino, m := range want {
		t.reads(ino, len(m)+1, 0, m)
	}
}
