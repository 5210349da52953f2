package opens

import (
	"context"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

var truncateSeed = flag.Uint64("truncate-seed", 0, "the only history of TestTruncateHistories; 0 is many")

// homeRun is a run of the home with its store, whose calls take time.
type homeRun struct {
	*world
	*Files
	s    *truncating
	dead bool // under truncating.store
}

func (r *homeRun) Getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	r.s.d.pause()
	return r.world.Getattr(ctx, ino)
}

func (r *homeRun) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	return r.update(ctx, c, math.MaxInt64)
}

// update changes the file. Its size must be at most most, and if that is a truncate's, no append may be in flight.
func (r *homeRun) update(ctx context.Context, c metadata.Change, most int64) (metadata.Attr, error) {
	r.s.d.pause()
	defer r.s.d.pause()
	r.s.store.Lock()
	defer r.s.store.Unlock()
	if r.dead {
		return metadata.Attr{}, syscall.ECONNRESET
	}
	if was, err := r.world.Getattr(ctx, 1000); err != nil || was.Size > most {
		r.s.t.Errorf("seed %d: truncate to %d: bytes behind %d were not cut off, and the size is %d, %v", r.s.seed, c.Size, most, was.Size, err)
	}
	if most < math.MaxInt64 && r.Incomplete(metadata.Append{Ino: 1000, Freeze: c.Freeze}) != nil {
		r.s.t.Errorf("seed %d: truncate to %d: an append is under way", r.s.seed, c.Size)
	}
	return r.world.Setattr(ctx, 1000, c)
}

// Set is Files.Set of the file.
func (r *homeRun) Set(c metadata.Change, most int64) error {
	ctx := r.s.t.Context()
	_, err := r.Files.Set(ctx, 1000, c, func() (metadata.Attr, error) { return r.update(ctx, c, most) })
	return err
}

// dice is a source of randomness for several goroutines.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

func (d *dice) pause() { time.Sleep(time.Duration(d.n(3000)) * time.Microsecond) }

// truncating is a file that several nodes change.
type truncating struct {
	t     *testing.T
	seed  uint64
	d     *dice
	w     *world
	store sync.Mutex // held for updates of w
	mu    sync.Mutex
	run   *homeRun // under mu
	cut   int      // under mu: truncates that have set the size
}

// newTruncating starts a home with an empty file.
func newTruncating(t *testing.T, seed uint64) *truncating {
	s := &truncating{t: t, seed: seed, d: &dice{rng: rand.New(rand.NewPCG(seed, 1))}, w: newWorld()}
	s.w.attrs[1000] = metadata.Attr{Ino: 1000, Mode: syscall.S_IFREG, Nlink: 1}
	s.start()
	return s
}

func (s *truncating) home() *homeRun {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run
}

// start starts the home, or restarts it.
func (s *truncating) start() {
	r := &homeRun{world: s.w, s: s}
	r.Files = serveWith(s.t, Config{Store: r, Places: s.w.places, Remove: s.w.remove, Rest: time.Second})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		s.store.Lock()
		s.run.dead = true
		s.store.Unlock()
	}
	s.run = r
}

// append makes one call to the home. Its context is that of a client that does not give up.
func (s *truncating) append(r *homeRun, a *appender, q metadata.Append) (metadata.Place, bool) {
	q.Ino = 1000
	pl, err := r.Append(s.t.Context(), a.by, q)
	return pl, s.ok(err)
}

// ok reports whether an operation succeeded, and fails the test for an error that no client should get.
func (s *truncating) ok(err error) bool {
	if err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ECANCELED) {
		s.t.Errorf("seed %d: %v", s.seed, err)
	}
	return err == nil
}

// act performs one operation of a node.
func (s *truncating) act(a *appender) {
	s.d.pause()
	r := s.home()
	switch n := s.d.n(40); {
	case n < 16: // a size is published
		s.ok(r.Set(metadata.Change{Set: metadata.GrowSize, Size: int64(s.d.n(1000))}, math.MaxInt64))
	case n < 24:
		q := a.next(int64(s.d.n(9) + 1))
		done := a.done()
		*[]*int64{&q.End, &done.End}[s.d.n(2)] = int64(s.d.n(1000)) // what the client has written besides
		for range 1 + s.d.n(2) {                                    // the reply may be lost
			s.append(r, a, q)
			s.d.pause()
		}
		if s.d.n(10) == 0 { // the client hangs
			time.Sleep(time.Duration(s.d.n(2 * int(appends.FreezeTime))))
		}
		s.append(r, a, done)
	case n < 39:
		s.truncate(r, a)
	default:
		a.by.Run++
		r.NoteRun(a.by)
	}
}

func (s *truncating) truncate(r *homeRun, a *appender) {
	freeze := 1 + uint64(s.d.n(1<<40))
	if s.d.n(5) == 0 { // the client is killed during the request
		asked := make(chan bool)
		go func() {
			_, ok := s.append(r, a, metadata.Append{Freeze: freeze})
			asked <- ok
		}()
		s.d.pause()
		over := s.home()
		s.append(over, a, metadata.Append{Freeze: freeze, Thaw: true})
		if <-asked; over == r && over.freezeOf(1000) == freeze {
			s.t.Errorf("seed %d: a client that is gone holds up the others", s.seed)
		}
		return
	}
	pl, ok := s.append(r, a, metadata.Append{Freeze: freeze})
	for n := 0; ok && pl.Off < 0; n++ {
		if n > 20 {
			s.t.Errorf("seed %d: some append is never complete", s.seed)
			return
		}
		pl, ok = s.append(r, a, metadata.Append{Freeze: freeze})
	}
	if !ok {
		return
	}
	s.d.pause() // the data is truncated
	switch s.d.n(10) {
	case 0:
		return // the client hangs
	case 1:
		time.Sleep(time.Duration(s.d.n(2 * int(appends.FreezeTime)))) // the client is late
	case 2:
		s.append(s.home(), a, metadata.Append{Freeze: freeze, Thaw: true})
		return
	}
	if s.ok(s.home().Set(metadata.Change{Set: metadata.SetSize, Size: int64(s.d.n(1000)), Freeze: freeze}, pl.Attr.Size)) {
		s.mu.Lock()
		s.cut++
		s.mu.Unlock()
	}
}

// TestManyWait: while the size of a file is frozen, only a limited number of nodes may wait to publish theirs: each
// takes a worker of the home, and the end of the freeze needs one, too.
func TestManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTruncating(t, 1)
		a := &appender{by: on(1)}
		s.append(s.run, a, metadata.Append{Freeze: 7})
		const more = 5
		ended := make(chan error, maxWaiting+more)
		for i := range maxWaiting + more {
			go func() { ended <- s.run.Set(metadata.Change{Set: metadata.GrowSize, Size: int64(i)}, math.MaxInt64) }()
		}
		synctest.Wait()
		if len(ended) != more {
			t.Errorf("%d do not wait, want %d", len(ended), more)
		}
		for range len(ended) {
			if err := <-ended; !errors.Is(err, syscall.EUSERS) {
				t.Errorf("one that does not wait: %v, want EUSERS", err)
			}
		}
		s.append(s.run, a, metadata.Append{Freeze: 7, Thaw: true})
		for range maxWaiting {
			if err := <-ended; err != nil {
				t.Errorf("one that has waited: %v", err)
			}
		}
	})
}

// freezeOf returns the number of the announced truncate.
func (r *Registry) freezeOf(ino metadata.Ino) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.frozen[ino]
}

// TestGoneFreezes: a truncate that waits for another freezes nothing after its client gave it up or was lost.
func TestGoneFreezes(t *testing.T) {
	for what, gone := range map[string]func(s *truncating, b *appender){
		"given up": func(s *truncating, b *appender) { s.append(s.run, b, metadata.Append{Freeze: 8, Thaw: true}) },
		"lost":     func(s *truncating, b *appender) { s.run.Lost(b.by.Node) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTruncating(t, 1)
				a, b := &appender{by: on(1)}, &appender{by: on(2)}
				s.append(s.run, a, metadata.Append{Freeze: 7})
				ended := make(chan error)
				go func() {
					_, err := s.run.Append(t.Context(), b.by, metadata.Append{Ino: 1000, Freeze: 8})
					ended <- err
				}()
				synctest.Wait()
				gone(s, b)
				s.append(s.run, a, metadata.Append{Freeze: 7, Thaw: true})
				if err := <-ended; err == nil {
					t.Error("the truncate was announced")
				}
				if n := s.run.freezeOf(1000); n != 0 {
					t.Errorf("frozen by truncate %d", n)
				}
			})
		})
	}
}

// TestHungAppend: while a truncate waits for an append that hangs, sizes can grow, and completions of earlier appends
// of its node are accepted. Other appends wait for one freeze time, however often the freeze is repeated.
func TestHungAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTruncating(t, 1)
		hangs, cuts, other := &appender{by: on(1)}, &appender{by: on(2)}, &appender{by: on(3)}
		s.append(s.run, hangs, hangs.next(5))
		began := time.Now()
		placed := make(chan time.Duration, 1)
		go func() {
			time.Sleep(time.Second)
			s.append(s.run, other, other.next(5))
			placed <- time.Since(began)
		}()
		go func() {
			time.Sleep(2 * time.Second)
			s.ok(s.run.Set(metadata.Change{Set: metadata.GrowSize, Size: 100}, math.MaxInt64))
			s.append(s.run, hangs, metadata.Append{Seq: hangs.seq, End: 200})
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("a size was published after %v", took)
			}
		}()
		ask := func(number uint64) (again bool, err error) {
			pl, err := s.run.Append(t.Context(), cuts.by, metadata.Append{Ino: 1000, Freeze: number})
			return pl.Off < 0, err
		}
		again, err := ask(7)
		for n := 0; again && err == nil && n < 10; n++ {
			again, err = ask(7)
		}
		if took := time.Since(began); !errors.Is(err, syscall.ECANCELED) || took > appends.FreezeTime+time.Second {
			t.Errorf("the freeze ends after %v: %v, want ECANCELED", took, err)
		}
		if took := <-placed; took > appends.FreezeTime+time.Second {
			t.Errorf("an append has its place after %v, want %v", took, appends.FreezeTime)
		}
		s.append(s.run, other, other.done())
		s.append(s.run, hangs, hangs.done())
		if again, err = ask(9); again || err != nil {
			t.Errorf("no append is under way: again %t, %v", again, err)
		}
	})
}

// TestTruncateHistories: under random orders of published sizes, appends and truncates by three nodes, with clients
// that hang, are late or restart, and restarts of the home, a truncate sets the size only if it has cut all published
// bytes. Otherwise those would reappear when the file grows.
func TestTruncateHistories(t *testing.T) {
	first, histories := rand.Uint64(), 200
	if *truncateSeed != 0 {
		first, histories = *truncateSeed, 1
	}
	cut := 0
	for k := range histories {
		seed := first + uint64(k)
		synctest.Test(t, func(t *testing.T) {
			s := newTruncating(t, seed)
			var wg sync.WaitGroup
			for id := range 3 {
				a := &appender{by: on(metadata.NodeID(id + 1))}
				wg.Go(func() {
					for range 25 {
						s.act(a)
					}
				})
			}
			if s.d.n(3) == 0 {
				time.Sleep(time.Duration(s.d.n(int(time.Second))))
				s.start()
			}
			wg.Wait()
			cut += s.cut
		})
		if t.Failed() {
			return
		}
	}
	if cut < histories {
		t.Errorf("%d truncates in %d histories: too few for the test to mean anything", cut, histories)
	}
}
