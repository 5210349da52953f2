package prefetch

import (
	"context"
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

const (
	distantFiles = 64
	distantSize  = 1000
)

// distant is a dataset on another node. A batch waits for a result on answers.
type distant struct {
	places  *sources.Table
	asked   chan []datapath.RangeRead
	answers chan error
	drops   atomic.Uint64
	dropped sync.Map // keyed by inode
}

func (d *distant) attr(ino metadata.Ino) metadata.Attr {
	return metadata.Attr{Ino: ino, Mode: syscall.S_IFREG | 0o644, Size: distantSize}
}

// Files implements accessplan.Files.
func (d *distant) Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error {
	for i := range uint32(distantFiles) {
		fn("", i, fmt.Sprintf("%02d.jpg", i), d.attr(metadata.SealedIno(1, 0, i+1)))
	}
	return nil
}

func (d *distant) Self() metadata.NodeID { return 0 }

func (d *distant) Getattr(_ context.Context, ino metadata.Ino) (metadata.Attr, error) {
	return d.attr(ino), nil
}

func (d *distant) Where(*metadata.Attr) []metadata.NodeID { return []metadata.NodeID{1} }

func (d *distant) BeginRead(n int64, among []metadata.NodeID) sources.Read {
	return d.places.Begin(n, among)
}

func (d *distant) ReadMany(ctx context.Context, _ metadata.NodeID, rs []datapath.RangeRead, buf []byte) error {
	select {
	case d.asked <- rs:
	case <-ctx.Done():
		return ctx.Err()
	}
	for i := range rs {
		rs[i].Data = buf[i*distantSize : (i+1)*distantSize]
		for k := range rs[i].Data {
			rs[i].Data[k] = byte(rs[i].Ino)
		}
	}
	select {
	case err := <-d.answers:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *distant) Read(context.Context, metadata.Attr, []byte, int64, stripe.ReadOpts) (int, error) {
	return 0, syscall.ENOSYS
}

func (d *distant) Neighbours(metadata.Ino, func(metadata.Ino) bool) []metadata.Ino { return nil }

func (d *distant) Advise(context.Context, *metadata.Attr) {}

// Mark, Store, Direct and Drop implement Pages.
func (d *distant) Mark() uint64                                   { return d.drops.Load() }
func (d *distant) Store(metadata.Ino, int64, []byte, uint64) bool { return true }
func (d *distant) Direct() bool                                   { return false }
func (d *distant) Drop(ino metadata.Ino, _, _ int64)              { d.dropped.Store(ino, true) }

// following returns an engine that has requested a batch, the dataset, and the files of the batch.
func following(t *testing.T) (*Engine, *distant, []datapath.RangeRead) {
	t.Helper()
	d := &distant{places: sources.New(0, time.Now, nil), asked: make(chan []datapath.RangeRead), answers: make(chan error)}
	log := logrus.New()
	log.SetOutput(io.Discard)
	plan := accessplan.Plan{Dataset: "set", Kind: accessplan.Torch, Shuffle: true, Ranks: 1}
	e := NewEngine(EngineConfig{
		Client: d, Files: d, Budget: 1 << 20, Log: log.WithField("test", t.Name()), Now: time.Now,
		Plan:      func() (*accessplan.Plan, <-chan struct{}) { return &plan, nil },
		Positions: func() []accessplan.Position { return []accessplan.Position{{}} },
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { e.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	e.Read(ctx, d, 0, 1, 1) // so that the engine knows the connection
	return e, d, <-d.asked
}

// reader begins to read a file in flight. The channel receives the bytes that the read gets.
func (e *Engine) reader(t *testing.T, ctx context.Context, d *distant, ino metadata.Ino) <-chan []byte {
	t.Helper()
	got := make(chan []byte, 1)
	go func() { got <- e.Read(ctx, d, ino, 0, distantSize) }()
	for deadline := time.Now().Add(5 * time.Second); ; {
		e.mu.Lock()
		f := e.flights[place{ino: ino}]
		met := f != nil && f.met
		e.mu.Unlock()
		if met {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatal("the reader does not wait for its file")
		}
		select {
		case b := <-got:
			t.Fatalf("the reader got %d bytes before they came", len(b))
		case <-time.After(time.Millisecond):
		}
	}
}

// TestReaderMeetsBatch: a reader whose file is in flight gets its bytes from that batch alone.
func TestReaderMeetsBatch(t *testing.T) {
	e, d, rs := following(t)
	ino := rs[1].Ino
	got := e.reader(t, context.Background(), d, ino)
	d.answers <- nil
	if b := <-got; len(b) != distantSize || b[0] != byte(ino) {
		t.Errorf("the reader got %d bytes", len(b))
	}
	for deadline := time.Now().Add(5 * time.Second); e.State().Hits == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("no hit: %+v", e.State())
		}
		select {
		case <-d.asked:
			d.answers <- nil
		case <-time.After(time.Millisecond):
		}
	}
	if n := e.State().Misses; n != 0 {
		t.Errorf("%d misses", n)
	}
}

// TestReaderGivesUp: a reader that is interrupted, whose batch fails, or whose pages are dropped reads by itself.
func TestReaderGivesUp(t *testing.T) {
	for name, act := range map[string]func(d *distant, interrupt func()){
		"interrupted": func(_ *distant, interrupt func()) { interrupt() },
		"failed":      func(d *distant, _ func()) { d.answers <- syscall.EIO },
		"not staged":  func(d *distant, _ func()) { d.answers <- syscall.EAGAIN },
		"dropped": func(d *distant, _ func()) {
			d.drops.Add(1)
			d.answers <- nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, d, rs := following(t)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			got := e.reader(t, ctx, d, rs[1].Ino)
			act(d, cancel)
			if b := <-got; b != nil {
				t.Errorf("the reader got %d bytes", len(b))
			}
		})
	}
}

// TestReaderDoesNotWaitForever: a batch that does not arrive delays its reader by mostWait.
func TestReaderDoesNotWaitForever(t *testing.T) {
	e, d, rs := following(t)
	began := time.Now()
	if b := <-e.reader(t, context.Background(), d, rs[1].Ino); b != nil || time.Since(began) > 3*mostWait {
		t.Errorf("the reader got %d bytes after %v", len(b), time.Since(began))
	}
}

// TestReadersMove: the engine follows readers that move to another connection permanently, but not single reads.
func TestReadersMove(t *testing.T) {
	var a, b distant
	e := NewEngine(EngineConfig{Now: time.Now})
	read := func(p Pages, times int) {
		for range times {
			e.Read(t.Context(), p, 1, 1, 1)
		}
	}
	read(&a, 1)
	for range 3 {
		read(&b, moveAfter-1)
		read(&a, 1)
	}
	if *e.pages.Load() != &a || e.moved.Load() {
		t.Error("single reads through another connection move the engine")
	}
	read(&b, 2*moveAfter)
	if *e.pages.Load() != &b || !e.moved.Swap(false) {
		t.Error("the engine stays at a connection that is not read from")
	}
	read(&a, moveAfter)
	if *e.pages.Load() != &a || !e.moved.Load() {
		t.Error("the engine does not move back")
	}
}

// TestBeaconIsDropped: the pages of a beacon are dropped, and its read gets the bytes kept in memory.
func TestBeaconIsDropped(t *testing.T) {
	e, d, rs := following(t)
	d.answers <- nil
	ino := rs[0].Ino                                     // the first position is a beacon
	for deadline := time.Now().Add(5 * time.Second); ; { // a reader that met it in flight would get it without a drop
		if _, ok := d.dropped.Load(ino); ok {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the pages of the beacon are not dropped")
		}
		select {
		case <-d.asked:
			d.answers <- nil
		case <-time.After(time.Millisecond):
		}
	}
	if b := e.Read(t.Context(), d, ino, 0, distantSize); len(b) != distantSize || b[0] != byte(ino) {
		t.Errorf("the beacon is not kept: its reader got %d bytes", len(b))
	}
	if _, ok := d.dropped.Load(rs[1].Ino); ok {
		t.Error("the pages of another file were dropped")
	}
}
