package slowpfs

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// virtual is a clock that advances only by waiting.
type virtual struct {
	mu sync.Mutex
	t  time.Time // guarded by mu
}

func (v *virtual) now() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.t
}

func (v *virtual) wait(_ <-chan struct{}, t time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t.After(v.t) {
		v.t = t
	}
}

// world is a Server over a temporary directory, under a virtual clock.
type world struct {
	*Server
	t     *testing.T
	clock *virtual
	under string
	at    []string // mountpoints
	sock  string
}

func serve(t *testing.T, mounts int, l Limits) *world {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	w := &world{t: t, clock: &virtual{t: time.Unix(1e9, 0)}, under: t.TempDir()}
	home, err := os.MkdirTemp("", "slow") // short, as socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	w.sock = filepath.Join(home, "sock")
	for i := range mounts {
		dir := filepath.Join(home, fmt.Sprint("m", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		w.at = append(w.at, dir)
	}
	w.Server, err = Serve(Config{Under: w.under, Mounts: w.at, Socket: w.sock, Limits: l, clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// file makes a file of n bytes in the directory below.
func (w *world) file(name string, n int) []byte {
	w.t.Helper()
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	if err := os.WriteFile(filepath.Join(w.under, name), b, 0o644); err != nil {
		w.t.Fatal(err)
	}
	return b
}

// measure returns the time that f takes by the virtual clock, and the counts.
func (w *world) measure(f func() error) (time.Duration, Counts) {
	w.t.Helper()
	before, began := w.Stats().Sum, w.clock.now()
	if err := f(); err != nil {
		w.t.Fatal(err)
	}
	return w.clock.now().Sub(began), w.Stats().Sum.Since(before)
}

// wantWithin fails unless got is between want less the burst and want.
func wantWithin(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got > want || got < want-burst {
		t.Errorf("%s took %v, want %v, or up to %v less", what, got, want, burst)
	}
}

func TestBucket(t *testing.T) {
	start := time.Unix(1e9, 0)
	var b bucket
	for i, c := range []struct {
		at   time.Duration // of the take
		n    int64
		want time.Duration // paid, after start
	}{
		{0, 1000, time.Second - burst}, {0, 500, 1500*time.Millisecond - burst}, // in sequence
		{5 * time.Second, 10, 5*time.Second + 10*time.Millisecond - burst}, // saved, but at most the burst
		{5 * time.Second, 0, 5 * time.Second},                              // zero costs nothing
	} {
		if got := b.take(start.Add(c.at), c.n, 1000).Sub(start); got != c.want {
			t.Errorf("%d: take(%v, %d) is paid at %v, want %v", i, c.at, c.n, got, c.want)
		}
	}
	if got := new(bucket).take(start, 1<<40, 0); got != start {
		t.Errorf("without a rate it is paid at %v", got)
	}
}

// TestBandwidth: all mounts together get the bandwidth, whichever reads.
func TestBandwidth(t *testing.T) {
	const size, rate = 8 << 20, 1 << 20
	w := serve(t, 2, Limits{Bandwidth: rate})
	want := w.file("f", size)
	for _, mounts := range []int{1, 2} {
		took, n := w.measure(func() error {
			var g errgroup.Group
			for _, at := range w.at[:mounts] {
				g.Go(func() error {
					got, err := os.ReadFile(filepath.Join(at, "f"))
					if err == nil && !bytes.Equal(got, want) {
						err = io.ErrUnexpectedEOF
					}
					return err
				})
			}
			return g.Wait()
		})
		if n[Read].Bytes != int64(mounts*size) {
			t.Errorf("%d mounts: %d bytes read, want %d", mounts, n[Read].Bytes, mounts*size)
		}
		wantWithin(t, fmt.Sprintf("%d mounts", mounts), took, time.Duration(mounts)*size/rate*time.Second)
	}
	w.measure(func() error { return w.SetLimits(Limits{Bandwidth: 4 * rate}) })
	took, _ := w.measure(func() error { _, err := os.ReadFile(filepath.Join(w.at[0], "f")); return err })
	wantWithin(t, "at four times the rate", took, size/(4*rate)*time.Second)
}

// TestIOPS: each request of any kind costs one operation of the shared bucket.
func TestIOPS(t *testing.T) {
	const rate, files = 100, 50
	w := serve(t, 2, Limits{IOPS: rate})
	for i := range files {
		w.file(fmt.Sprint("f", i), 10)
	}
	took, n := w.measure(func() error {
		for _, at := range w.at {
			for i := range files {
				if _, err := os.ReadFile(filepath.Join(at, fmt.Sprint("f", i))); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if n[Lookup].Ops < 2*files || n[Open].Ops != 2*files || n[Read].Ops < 2*files || n[Read].Bytes != 2*files*10 {
		t.Errorf("%d files by two mounts counted as %v", files, n)
	}
	wantWithin(t, "all", took, time.Duration(n.Total().Ops)*time.Second/rate)
}

// TestLatency: sequential requests wait one by one, concurrent requests wait together.
func TestLatency(t *testing.T) {
	const latency = 10 * time.Millisecond
	w := serve(t, 1, Limits{Latency: latency})
	w.file("f", 10)
	took, n := w.measure(func() error { _, err := os.ReadFile(filepath.Join(w.at[0], "f")); return err })
	if want := time.Duration(n.Total().Ops) * latency; took != want || n.Total().Ops < 3 {
		t.Errorf("%v one after another took %v, want %v", n, took, want)
	}
	came := w.clock.now()
	for range 5 {
		w.srv.serve(nil, came, 0)
	}
	if got := w.clock.now().Sub(came); got != latency {
		t.Errorf("5 requests side by side took %v, want %v", got, latency)
	}
}

// TestRealClock compares only times of the same run.
func TestRealClock(t *testing.T) {
	s := &server{clock: wallClock{}}
	run := func(l Limits) time.Duration {
		s.set(l)
		began := time.Now()
		for range 20 {
			s.serve(nil, time.Now(), 1000)
		}
		return time.Since(began)
	}
	free, slow := run(Limits{}), run(Limits{Bandwidth: 100_000})
	if slow < 5*free {
		t.Errorf("a fifth of a second's bytes took %v, without limit %v", slow, free)
	}
	cancel := make(chan struct{})
	close(cancel)
	s.set(Limits{Latency: time.Hour})
	s.serve(cancel, time.Now(), 0) // an interrupted request does not wait
}

// TestCountsWhatIsReadAgain: a byte that is read again after a reopen counts again.
func TestCountsWhatIsReadAgain(t *testing.T) {
	w := serve(t, 1, Limits{})
	const size = 1 << 20
	w.file("f", size)
	for i := range 3 {
		_, n := w.measure(func() error { _, err := os.ReadFile(filepath.Join(w.at[0], "f")); return err })
		if n[Read].Bytes != size {
			t.Errorf("reading %d counted %d bytes, want %d", i, n[Read].Bytes, size)
		}
	}
}

// TestNoFlush: closing files sends this process a single request, and then none.
func TestNoFlush(t *testing.T) {
	w := serve(t, 1, Limits{})
	w.file("f", 10)
	for range 5 {
		if _, err := os.ReadFile(filepath.Join(w.at[0], "f")); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.mounts[0].fs.flushes.Load(); n > 1 {
		t.Errorf("5 files were closed with %d requests, want at most one", n)
	}
}

// TestPassesThrough: content below is visible, changes go through, and all requests are counted by kind.
func TestPassesThrough(t *testing.T) {
	w := serve(t, 1, Limits{})
	_, n := w.measure(func() error {
		at := w.at[0]
		if err := os.MkdirAll(filepath.Join(at, "a/b"), 0o750); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(at, "a/b/f"), []byte("hello"), 0o640); err != nil {
			return err
		}
		if err := os.Symlink("f", filepath.Join(at, "a/b/l")); err != nil {
			return err
		}
		if to, err := os.Readlink(filepath.Join(at, "a/b/l")); err != nil || to != "f" {
			return fmt.Errorf("link to %q: %v", to, err)
		}
		if _, err := os.ReadDir(filepath.Join(at, "a/b")); err != nil {
			return err
		}
		return os.Rename(filepath.Join(at, "a/b/f"), filepath.Join(at, "g"))
	})
	if b, err := os.ReadFile(filepath.Join(w.under, "g")); err != nil || string(b) != "hello" {
		t.Errorf("below is %q, %v", b, err)
	}
	for _, k := range []Kind{Lookup, Open, Readlink, Readdir, Write, Change} {
		if n[k].Ops == 0 {
			t.Errorf("no %s was counted: %v", k, n)
		}
	}
	if n[Write].Bytes != 5 {
		t.Errorf("%d bytes written, want 5", n[Write].Bytes)
	}
}

func TestSocket(t *testing.T) {
	w := serve(t, 2, Limits{})
	w.file("f", 1000)
	c := NewClient(w.sock)
	if err := c.SetLimits(t.Context(), Limits{Latency: time.Millisecond, Bandwidth: 2000, IOPS: 30}); err != nil {
		t.Fatal(err)
	}
	if err := c.SetLimits(t.Context(), Limits{IOPS: -1}); err == nil {
		t.Error("a negative limit is taken")
	}
	if _, err := os.ReadFile(filepath.Join(w.at[1], "f")); err != nil {
		t.Fatal(err)
	}
	s, err := c.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Limits != (Limits{Latency: time.Millisecond, Bandwidth: 2000, IOPS: 30}) {
		t.Errorf("limits are %+v", s.Limits)
	}
	if a, b := s.Mounts[w.at[0]][Read], s.Mounts[w.at[1]][Read]; a.Bytes != 0 || b.Bytes != 1000 || s.Sum[Read] != b {
		t.Errorf("the mounts read %v and %v, all %v", a, b, s.Sum[Read])
	}
}

// TestErrors: with errors=1, each request fails with EIO and does nothing; without errors, the same file is readable.
func TestErrors(t *testing.T) {
	w := serve(t, 1, Limits{})
	want := w.file("f", 1000)
	f, err := os.OpenFile(filepath.Join(w.at[0], "f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := w.SetLimits(Limits{Errors: 1}); err != nil {
		t.Fatal(err)
	}
	_, read := f.ReadAt(make([]byte, 10), 0)
	_, write := f.WriteAt([]byte("other"), 0)
	create := os.WriteFile(filepath.Join(w.at[0], "g"), nil, 0o600)
	for what, err := range map[string]error{"read": read, "write": write, "fsync": f.Sync(), "create": create} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s = %v, want EIO", what, err)
		}
	}
	if err := w.SetLimits(Limits{}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(w.at[0], "f")); err != nil || !bytes.Equal(b, want) {
		t.Errorf("afterwards: %d bytes, %v, want %d", len(b), err, len(want))
	}
	if _, err := os.Stat(filepath.Join(w.under, "g")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file whose creation failed: %v", err)
	}
}
