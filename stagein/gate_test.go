package stagein

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// slowFile is a file whose reads take a while; it knows how many bytes are under way.
type slowFile struct {
	source.File
	data        []byte
	under, most atomic.Int64
}

func (f *slowFile) ReadAt(p []byte, off int64) (int, error) {
	now := f.under.Add(int64(len(p)))
	for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
	}
	time.Sleep(10 * time.Millisecond) // of a bubble's clock
	f.under.Add(-int64(len(p)))
	return copy(p, f.data[off:]), nil
}

// TestGate: while readers come little is under way; when none has come for a while,
// all that is wanted; and what is read is right.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, ahead8 = 1 << 20, 8
		f := &slowFile{data: randBytes(seed(t), ahead8*size)}
		g := newGate()
		most := func() int64 {
			f.most.Store(0)
			var wg sync.WaitGroup
			for i := range ahead8 {
				wg.Go(func() {
					b := make([]byte, size)
					if n, err := (ahead{f, t.Context(), g}).ReadAt(b, int64(i*size)); n != size || err != nil || !bytes.Equal(b, f.data[i*size:(i+1)*size]) {
						t.Errorf("read %d = %d bytes, %v", i, n, err)
					}
				})
			}
			wg.Wait()
			return f.most.Load()
		}
		if got := most(); got != ahead8*size {
			t.Errorf("without readers %d bytes are under way, want %d", got, ahead8*size)
		}
		served := g.reader(time.Second)
		if got := most(); got > gateUnder {
			t.Errorf("while a reader waits %d bytes are under way, want %d", got, gateUnder)
		}
		served()
		if got := most(); got > gateUnder {
			t.Errorf("after a reader %d bytes are under way, want %d", got, gateUnder)
		}
		g.calm(t.Context().Done())
		if got := most(); got != ahead8*size {
			t.Errorf("when readers are gone %d bytes are under way, want %d", got, ahead8*size)
		}
	})
}

// TestGateGivesUp: who may not read any more does not wait for readers.
func TestGateGivesUp(t *testing.T) {
	g := newGate()
	g.reader(time.Hour)
	g.under = gateUnder
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.calm(ctx.Done())
	if _, err := (ahead{&slowFile{}, ctx, g}).ReadAt(make([]byte, 1), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("ReadAt = %v, want it cancelled", err)
	}
}
