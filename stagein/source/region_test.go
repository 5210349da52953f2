package source

import (
	"bytes"
	"context"
	"errors"
	"io"
	"syscall"
	"testing"
)

func TestRegionReadsOnce(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	for _, depth := range []int{1, 3, 8} {
		pool := NewPool(4, 1024)
		r := ReadRegion(context.Background(), bytes.NewReader(data), "f", 512, int64(len(data)), pool, depth)
		got := []byte{}
		for {
			for n := len(got) % 3; n > 0; n-- {
				_ = r.Ready() // at random: calling Ready changes nothing
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
		if !bytes.Equal(got, data[512:]) || pool.Out() != 0 {
			t.Errorf("depth %d: %d bytes, %d buffers out", depth, len(got), pool.Out())
		}
		// Closed in the middle, and for a file that is too short.
		r = ReadRegion(context.Background(), bytes.NewReader(data), "f", 0, int64(len(data)), pool, depth)
		if p, err := r.Next(); err != nil {
			t.Error(err)
		} else {
			p.Release()
		}
		r.Close()
		r = ReadRegion(context.Background(), bytes.NewReader(data[:100]), "f", 0, 200, pool, depth)
		if _, err := r.Next(); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("%v, want ESTALE", err)
		}
		r.Close()
		if pool.Out() != 0 {
			t.Errorf("%d buffers out", pool.Out())
		}
	}
}

// TestRegionReady: Ready is true for a read that is complete and at the end, and false for one in progress.
func TestRegionReady(t *testing.T) {
	let, began := make(chan struct{}), make(chan struct{}, 8)
	f := readerFunc(func(p []byte, off int64) (int, error) {
		began <- struct{}{}
		<-let
		return len(p), nil
	})
	r := ReadRegion(context.Background(), f, "f", 0, 100, NewPool(1, 1024), 2)
	defer r.Close()
	<-began
	if r.Ready() {
		t.Error("Ready during a read")
	}
	close(let)
	p, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	p.Release()
	if _, err := r.Next(); err != io.EOF || !r.Ready() {
		t.Errorf("at the end: %v, ready %v", err, r.Ready())
	}
}

type readerFunc func(p []byte, off int64) (int, error)

func (f readerFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }
