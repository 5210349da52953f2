package source

import (
	"bytes"
	"context"
	"errors"
	"io"
	"syscall"
	"testing"
)

// TestRegionNear: while reads are served from memory, none is made before Next, and all use one buffer.
func TestRegionNear(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	pool := NewPool(8, 1024)
	reads := 0
	f := readerFunc(func(p []byte, off int64) (int, error) {
		reads++
		return bytes.NewReader(data).ReadAt(p, off)
	})
	pool.quick.Store(1 << 20) // regardless of the clock
	r := ReadRegionNear(context.Background(), f, "f", 512, int64(len(data)), pool, 40)
	r.wg.Wait() // all are queued
	var got []byte
	for n := 0; ; n++ {
		if r.Ready(); reads != n {
			t.Fatalf("%d reads before piece %d was requested", reads, n)
		}
		p, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil || p.Off != int64(512+len(got)) {
			t.Fatalf("piece at %d, %v", p.Off, err)
		}
		got = append(got, p.B...)
		p.Release()
	}
	r.Close()
	if !bytes.Equal(got, data[512:]) || pool.Out() != 0 || len(pool.free) != 1 {
		t.Errorf("%d bytes, %d buffers out of %d, want one in all", len(got), pool.Out(), len(pool.free))
	}
}

// TestRegionNearEnds: a region that is closed, has no buffers, or whose file is too short returns all its buffers.
func TestRegionNearEnds(t *testing.T) {
	data := make([]byte, 4096)
	pool := NewPool(1, 1024)
	near := func(b []byte, end int64) *Region {
		pool.quick.Store(1 << 20)
		r := ReadRegionNear(context.Background(), bytes.NewReader(b), "f", 0, end, pool, 8)
		r.wg.Wait()
		return r
	}
	r := near(data, 4096)
	p, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	if r.Ready() {
		t.Error("tryGet returned a buffer of an exhausted pool")
	}
	p.Release()
	if !r.Ready() {
		t.Error("tryGet returned no buffer of a full pool")
	}
	r.Close()
	r = near(data[:100], 200)
	if _, err := r.Next(); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("%v, want ESTALE", err)
	}
	r.Close()
	if pool.Out() != 0 {
		t.Errorf("%d buffers out", pool.Out())
	}
}

// TestQuick: one slow read starts read-ahead, several quick ones stop it.
func TestQuick(t *testing.T) {
	p := NewPool(1, 1<<20)
	for i := range 2 * quickReads {
		if got, want := p.AtOnce(), i >= quickReads; got != want {
			t.Errorf("after %d quick reads: at once %v, want %v", i, got, want)
		}
		p.observe(1<<20, quickCall+quickRate)
	}
	if p.observe(1<<19, quickCall+quickRate/2+1); p.AtOnce() {
		t.Error("AtOnce after a slow read")
	}
}
