package fill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestSmallTravelTogether: the members of one read go to each node in one message, except for members that the read
// cuts.
func TestSmallTravelTogether(t *testing.T) {
	const members, nodes = 1000, 4
	archive := large(t, members)
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	j := runJob(archive, nodes)
	j.Lim.Piece, j.RunSize, j.Memory = 64<<10, 256<<10, 1<<20
	var reads, messages, pieces atomic.Int64
	var once sync.Once
	j.Order = func(int) { once.Do(func() { j.FS.OnRead = func(string, int64) { reads.Add(1) } }) }
	j.Swarm.Loads = func(ps []datapath.PiecePut) {
		checkLoad(t, ps)
		messages.Add(1)
		pieces.Add(int64(len(ps)))
	}
	j.Swarm.Alone = func() { messages.Add(1) }
	got, err := j.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stageintest.CheckTree(t, got, want)
	// The two halves of a cut member may be sent alone.
	if most := reads.Load() * (nodes - 1 + 2); messages.Load() > most {
		t.Errorf("%d messages after %d reads, want %d at the most", messages.Load(), reads.Load(), most)
	}
	if pieces.Load() < members/2 {
		t.Errorf("%d pieces of %d members", pieces.Load(), members)
	}
}

// checkLoad checks that the pieces fit in one message.
func checkLoad(t *testing.T, ps []datapath.PiecePut) {
	n := int64(0)
	for i := range ps {
		n += ps[i].Len()
	}
	if n > wire.MaxData || len(ps) > wire.MaxPieces || len(ps) == 0 {
		t.Errorf("%d pieces of %d bytes in a message", len(ps), n)
	}
}

// TestReadTravelsTogether: members read in a single pass are batched in the same way.
func TestReadTravelsTogether(t *testing.T) {
	const members, nodes, piece = 1000, 4, 64 << 10
	plain := large(t, members)
	want, err := stageintest.TwinTar(plain)
	if err != nil {
		t.Fatal(err)
	}
	var zips []stageintest.ZipMember
	for i := range members {
		zips = append(zips, stageintest.ZipFile(fmt.Sprint("m", i), make([]byte, 2000)))
	}
	zipArchive := stageintest.WriteZip(t, "", zips...)
	wantZip, err := stageintest.TwinZip(zipArchive)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		archive []byte
		want    map[string]stageintest.Entry
	}{{"tar", plain, want}, {"tar.gz", stageintest.PackGzip(t, plain), want}, {"zip", zipArchive, wantZip}} {
		j := jobtest.TarJob(c.archive, nodes)
		j.Lim.Piece, j.Memory = piece, 1<<20
		var messages atomic.Int64
		j.Target = &stageintest.MemTarget{OnPutAll: func(ps []datapath.PiecePut) {
			checkLoad(t, ps)
			messages.Add(1)
		}}
		got, err := j.Run(context.Background())
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		stageintest.CheckTree(t, got, c.want)
		// Each reader fills at most this many buffers, and sends each to all nodes.
		if most := int64(2 * nodes * (len(plain)/piece + 2*nodes)); messages.Load() > most {
			t.Errorf("%s: %d messages for %d members, want %d at the most", c.name, messages.Load(), members, most)
		}
	}
}

// TestOneBadPiece: a piece that cannot be stored, or whose checksum differs, is fetched by its owner; the others of its
// message are stored.
func TestOneBadPiece(t *testing.T) {
	archive := large(t, 200)
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	for _, no := range []error{syscall.EBADMSG, syscall.ENOSPC} {
		j := runJob(archive, 3)
		var n, bad atomic.Int64
		j.Swarm.Stores = func(*datapath.PiecePut) error {
			if n.Add(1)%3 == 0 {
				bad.Add(1)
				return no
			}
			return nil
		}
		got, err := j.Run(context.Background())
		if err != nil {
			t.Fatalf("%v: %v", no, err)
		}
		stageintest.CheckTree(t, got, want)
		if bad.Load() == 0 {
			t.Errorf("%v: no piece was bad", no)
		}
	}
}

// TestWholeLoadLost: the owner fetches all pieces if a message cannot be sent at all.
func TestWholeLoadLost(t *testing.T) {
	archive := large(t, 200)
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	j := runJob(archive, 3)
	var n atomic.Int64
	j.Swarm.Lost = func() error {
		if n.Add(1)%2 == 0 {
			return syscall.ECONNRESET
		}
		return nil
	}
	got, err := j.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stageintest.CheckTree(t, got, want)
	if n.Load() < 2 {
		t.Errorf("%d messages", n.Load())
	}
}

// writes counts the writes to a journal, and can fail them.
type writes struct {
	fill.JournalFile
	n     int
	fails error
}

func (w *writes) WriteAt(p []byte, off int64) (int, error) {
	w.n++
	if w.fails != nil {
		return 0, w.fails
	}
	return w.JournalFile.WriteAt(p, off)
}

// TestCompletionIsOneWrite: pieces completed together are recorded by one journal write; if it fails, none of them is
// present.
func TestCompletionIsOneWrite(t *testing.T) {
	_, f, mine := oneFill(t, large(t, 100))
	w := &writes{fails: syscall.ENOSPC}
	f.SetJournal(func(j fill.JournalFile) fill.JournalFile { w.JournalFile = j; return w })
	land := func() error {
		l := fill.Completion{By: 1, Incarnation: 7}
		c := fill.Offer{By: 1, Incarnation: 7}
		for i, p := range mine {
			c.Pieces, l.Pieces = append(c.Pieces, p), append(l.Pieces, p)
			sum := [16]byte{byte(i + 1)}
			l.Sums = append(l.Sums, sum[:])
		}
		l.Sums[1] = nil // was not delivered
		if granted := f.Accept(c); !slices.Contains(granted, true) {
			t.Fatal("nothing is granted")
		}
		return f.Complete(l)
	}
	if err := land(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Complete with a full journal = %v, want ENOSPC", err)
	}
	for _, p := range mine {
		if f.Present(p) {
			t.Fatalf("%v is here, but not in the journal", p)
		}
	}
	w.n, w.fails = 0, nil
	if err := land(); err != nil || w.n != 1 {
		t.Fatalf("%v, %d writes of %d pieces, want one", err, w.n, len(mine))
	}
	for i, p := range mine {
		if f.Present(p) != (i != 1) {
			t.Errorf("piece %d is here: %v", i, f.Present(p))
		}
	}
}
