package fill

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestUnreadableAreFew: the report stays short if a source has many faults.
func TestUnreadableAreFew(t *testing.T) {
	f := &Fill{bad: newUnreadables(&Config{Log: stageintest.QuietLog(), Files: &stageintest.MemFiles{}})}
	ino := func(i int) metadata.Ino { return metadata.SealedIno(3, 0, uint32(i)) }
	for range 2 {
		for i := range 100 {
			f.bad.report(&metadata.Attr{Ino: ino(i)}, io.ErrUnexpectedEOF)
		}
	}
	if all, more := f.Unreadable(); len(all) != mostUnreadable || more != 100-mostUnreadable {
		t.Errorf("%d are named, and %d are not", len(all), more)
	}
	for i := range 100 {
		f.bad.forget(ino(i))
	}
	if all, more := f.Unreadable(); len(all) > 0 || more > 0 {
		t.Errorf("%d are named, and %d are not, after all were read", len(all), more)
	}
}

// TestReachable: files of a compressed tar are not read through, since that would unpack everything before them.
func TestReachable(t *testing.T) {
	for kind, want := range map[source.Kind]bool{source.TarZstd: false, source.Tar: true} {
		f := &Fill{src: archive.Fetcher{Sources: []archive.Origin{{Kind: kind}}}}
		if got := f.reachable(manifest.Origin{Off: 99}); got != want {
			t.Errorf("files of %s can be read through: %v, want %v", kind, got, want)
		}
	}
}

// TestCutShortIsNotMissing: files that a pass did not reach are not reported as missing, since no error explains it.
func TestCutShortIsNotMissing(t *testing.T) {
	ino := metadata.SealedIno(3, 0, 1)
	f := &Fill{present: newPieceSet(), overflow: newOverflow(), unfetched: []PieceID{{Ino: ino}}}
	if n, why := f.Missing(); n != 0 || why != nil {
		t.Errorf("Missing() = %d, %v, want 0 without a reason", n, why)
	}
	f.lack = io.ErrUnexpectedEOF
	if n, why := f.Missing(); n != 1 || why == nil {
		t.Errorf("Missing() = %d, %v, want 1 and the reason", n, why)
	}
}

// TestGivesWay: the fill continues in its order while readers follow that order, and yields to readers that do not.
func TestGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFlights(newPieceSet())
		piece := func(i int) PieceID { return PieceID{Ino: metadata.SealedIno(3, 0, uint32(i))} }
		waits := func(rest time.Duration) bool {
			over := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			go func() { fs.yieldToReaders(ctx, rest); close(over) }()
			synctest.Wait()
			defer func() { cancel(); <-over }()
			select {
			case <-over:
				return false
			default:
				return true
			}
		}
		fs.begin(2)
		for i := range 3 {
			if fs.wait(); waits(othersRest) {
				t.Errorf("the order waits for readers that are %d pieces before it", i)
			}
			fs.demand(piece(i))
		}
		if !waits(othersRest) {
			t.Error("the order does not wait for readers that go their own way")
		}
		if waits(0) {
			t.Error("the order rests for longer than it is asked to")
		}
		if fs.reached(piece(7)); !waits(othersRest) { // not demanded
			t.Error("the order does not wait after a piece of its own")
		}
		if fs.reached(piece(0)); waits(othersRest) {
			t.Error("the order waits when it has come near the readers")
		}
		fs.demand(piece(3))
		for range 2 {
			if fs.served(); !waits(othersRest) {
				t.Error("the order does not wait for the last reader")
			}
		}
		if fs.served(); waits(othersRest) {
			t.Error("the order waits for readers that were served")
		}
		for range 20 { // readers wait nearly all the time
			fs.wait()
			time.Sleep(loadMemory / 5)
			fs.served()
			time.Sleep(demandGap / 5)
		}
		if !waits(othersRest) {
			t.Error("the order does not wait for the next of readers that mostly wait")
		}
		if time.Sleep(demandGap); waits(othersRest) {
			t.Error("the order waits for readers that have not come again")
		}
		for range 20 { // readers seldom wait
			fs.wait()
			time.Sleep(loadMemory / 50)
			fs.served()
			time.Sleep(loadMemory / 5)
		}
		fs.wait()
		if fs.served(); waits(othersRest) {
			t.Error("the order waits for the next of readers that seldom wait")
		}
		fs.wait()
		if fs.begin(2); waits(othersRest) {
			t.Error("the next pass waits for readers of the one before")
		}
	})
}

// TestHasKnowsWhoseChunk: a stand-in that has chunk 0 of a lost node does not claim to have its own chunk, which is at
// the beginning of its object.
func TestHasKnowsWhoseChunk(t *testing.T) {
	m := cluster.NewMap(7, []string{"a", "b", "c"})
	a := metadata.Attr{Ino: metadata.SealedIno(3, 0, 1), Size: 5<<20 + 1, Layout: metadata.Layout{Kind: metadata.Striped, ChunkSize: 1 << 20}}
	order := m.Order(a.Ino, a.Layout)
	files := &stageintest.MemFiles{ByIno: map[metadata.Ino]*manifest.Record{a.Ino: {Attr: a}}}
	f := &Fill{striped: true, present: newPieceSet(), cfg: Config{
		Self: order[1], Files: files, Watch: func() (cluster.Map, <-chan struct{}) { return m, nil },
	}}
	at := func(chunk int64) int64 { return datapath.ObjectOffset(1<<20, order, a.Size, chunk, order[1]) }
	for chunk := range int64(6) {
		if f.Has(a.Ino, at(chunk), 1) {
			t.Errorf("chunk %d is said to be here", chunk)
		}
		f.present.add(PieceID{a.Ino, uint32(chunk)})
		for later := range int64(6) {
			if got := f.Has(a.Ino, at(later), 1); got != (later <= chunk) {
				t.Errorf("with chunks up to %d: chunk %d is here: %v", chunk, later, got)
			}
		}
	}
	if f.Has(a.Ino, 100<<20, 1) {
		t.Error("bytes of no chunk are said to be here")
	}
}

// TestStoredIsWhole: a file whose chunks all belong to this node is stored when every chunk is present. Before that,
// its object may already have the size of the file, but contain holes.
func TestStoredIsWhole(t *testing.T) {
	m := cluster.NewMap(7, []string{"a"})
	a := metadata.Attr{Ino: metadata.SealedIno(3, 0, 1), Size: 2<<20 + 1, Layout: metadata.Layout{Kind: metadata.Striped, ChunkSize: 1 << 20}}
	files := &stageintest.MemFiles{ByIno: map[metadata.Ino]*manifest.Record{a.Ino: {Attr: a}}}
	f := &Fill{striped: true, present: newPieceSet(), cfg: Config{
		Files: files, Watch: func() (cluster.Map, <-chan struct{}) { return m, nil },
	}}
	for i, chunk := range []uint32{0, 2, 1} {
		f.present.add(PieceID{a.Ino, chunk})
		if got := f.Stored(a.Ino); got != (i == 2) {
			t.Errorf("with %d of 3 chunks: stored: %v", i+1, got)
		}
	}
	two := cluster.NewMap(7, []string{"a", "b"})
	f.cfg.Watch = func() (cluster.Map, <-chan struct{}) { return two, nil }
	if f.Stored(a.Ino) {
		t.Error("a file of two nodes is said to be stored on one")
	}
}
