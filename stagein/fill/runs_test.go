package fill_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// runJob returns a job that scans an archive and fills it in runs of a few members.
func runJob(archive []byte, nodes int) *jobtest.Job {
	j := jobtest.TarJob(archive, nodes)
	j.Opts.Fill = stagein.Order{Kind: stagein.OrderShuffled}
	j.Swarm = jobtest.NewSwarm(j)
	j.RunSize = 16 << 10
	return j
}

// TestRunsEqualTwin: whichever node reads a run, every file has its content in the archive, and no byte of the source
// is read twice after the scan.
func TestRunsEqualTwin(t *testing.T) {
	r := stageintest.Rand(t)
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatPAX} {
		for range 12 {
			archive := stageintest.WriteTar(t, format, stageintest.RandomMembers(r, format, 1+r.IntN(200)))
			want, err := stageintest.TwinTar(archive)
			if err != nil {
				t.Fatal(err)
			}
			for _, nodes := range []int{1, 2, 5} {
				j := runJob(archive, nodes)
				j.Stripe = 3000
				got, err := j.Run(context.Background())
				if err != nil {
					t.Fatalf("%d nodes: %v", nodes, err)
				}
				stageintest.CheckTree(t, got, want)
				if read := j.FS.Read.Load(); read != j.Sum.SourceBytes || j.Sum.SourceBytes-j.Scanned.Read > int64(len(archive)) {
					t.Errorf("%d nodes: %d bytes of %d read after the scan, %d counted", nodes, read-j.Scanned.Read, len(archive), j.Sum.SourceBytes-j.Scanned.Read)
				}
			}
		}
	}
}

// large returns an archive of n members of 2000 bytes.
func large(t *testing.T, n int) []byte {
	r := stageintest.Rand(t)
	var members []stageintest.Member
	for i := range n {
		members = append(members, stageintest.TarFile(fmt.Sprintf("d%d/m%d", i%7, i), stageintest.RandBytes(r, 2000)))
	}
	return stageintest.WriteTar(t, tar.FormatUSTAR, members)
}

// TestRunsAreLarge: adjacent members are read in one request, not one by one.
func TestRunsAreLarge(t *testing.T) { checkLarge(t, 4) }

// TestRunsAreLargeOnOneNode: the same on a single node.
func TestRunsAreLargeOnOneNode(t *testing.T) { checkLarge(t, 1) }

// checkLarge lets nodes read an archive and checks that few reads suffice.
func checkLarge(t *testing.T, nodes int) {
	t.Helper()
	archive := large(t, 1000)
	j := runJob(archive, nodes)
	j.Lim.Piece, j.RunSize, j.Memory = 64<<10, 256<<10, 1<<20
	var reads atomic.Int64
	var once sync.Once
	j.Order = func(int) {
		once.Do(func() {
			j.FS.OnRead = func(string, int64) {
				reads.Add(1)
			}
		})
	}
	if _, err := j.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if most := int64(6 * len(archive) / j.Lim.Piece); reads.Load() > most {
		t.Errorf("%d reads of 1000 members in %d bytes, want %d at the most", reads.Load(), len(archive), most)
	}
}

// TestLargeIsReadByOwner: large members are read by their owner and not sent between nodes.
func TestLargeIsReadByOwner(t *testing.T) {
	r := stageintest.Rand(t)
	var members []stageintest.Member
	for i := range 12 {
		members = append(members, stageintest.TarFile(fmt.Sprint("large", i), stageintest.RandBytes(r, fill.LargePiece+i)), stageintest.TarFile(fmt.Sprint("small", i), stageintest.RandBytes(r, 1000)))
	}
	archive := stageintest.WriteTar(t, tar.FormatUSTAR, members)
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	j := runJob(archive, 3)
	j.Stripe, j.Lim.Piece = 2*fill.LargePiece, 64<<10
	var sent atomic.Int64
	j.Swarm.Sent = func(n int) { sent.Add(int64(n)) }
	got, err := j.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stageintest.CheckTree(t, got, want)
	if n := sent.Load(); n > 12*1000 {
		t.Errorf("%d bytes went between nodes", n)
	}
	if read := j.Sum.SourceBytes - j.Scanned.Read; read > int64(len(archive)) {
		t.Errorf("%d bytes of %d were read", read, len(archive))
	}
}

// TestRunsAtTrouble: a node that does not grant offers, or does not learn what it was sent, has all files in the end;
// so have the other nodes.
func TestRunsAtTrouble(t *testing.T) {
	archive := large(t, 200)
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(j *jobtest.Job){
		"offers fail": func(j *jobtest.Job) {
			j.Swarm.Offers = func(to metadata.NodeID, _ fill.Offer) error {
				if to == 1 {
					return syscall.EHOSTUNREACH
				}
				return nil
			}
		},
		"puts by others fail": func(j *jobtest.Job) {
			var n atomic.Int64
			j.Target = &stageintest.MemTarget{OnPut: func(metadata.NodeID, metadata.Ino, int) error {
				if n := n.Add(1); n < 40 && n%4 == 0 { // each piece is tried three times
					return syscall.ETIMEDOUT
				}
				return nil
			}}
		},
		"reads fail": func(j *jobtest.Job) {
			var n atomic.Int64
			j.Order = func(int) {
				spoil := func() error {
					if n := n.Add(1); n < 40 && n%4 == 0 {
						return syscall.ETIMEDOUT
					}
					return nil
				}
				j.FS.FailRead.Store(&spoil)
			}
		},
	} {
		j := runJob(archive, 3)
		spoil(j)
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		got, err := j.Run(ctx)
		cancel()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		stageintest.CheckTree(t, got, want)
	}
}

// oneFill returns the fill of node 0 of two, after a complete scan.
func oneFill(t *testing.T, archive []byte) (j *jobtest.Job, f *fill.Fill, mine []fill.PieceID) {
	t.Helper()
	j = runJob(archive, 2)
	j.Target = &stageintest.MemTarget{Objects: map[stageintest.ObjectKey][]byte{}}
	m := stageintest.ClusterMap(2)
	var records bytes.Buffer
	cfg := &scan.Config{
		FS: j.FS, Request: stagein.Request{Source: j.Path, Name: "ds", Options: j.Opts}, Dataset: 3, Map: m, UID: jobtest.JobUID, GID: jobtest.JobGID, Stripe: j.Stripe, Log: stageintest.QuietLog(),
	}
	s, err := scan.Run(context.Background(), cfg, &records)
	if err != nil {
		t.Fatal(err)
	}
	files, err := stageintest.FilesOf(records.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if f, err = j.Filler(m, 0, s, files, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if mine, err = f.List(m); err != nil || len(mine) < 3 {
		t.Fatalf("%d pieces, %v", len(mine), err)
	}
	return j, f, mine
}

func offerOf(by metadata.NodeID, incarnation uint64, ps ...fill.PieceID) fill.Offer {
	return fill.Offer{By: by, Incarnation: incarnation, Pieces: ps}
}

func all(granted []bool, want bool) bool {
	for _, g := range granted {
		if g != want {
			return false
		}
	}
	return true
}

// TestReplicaIsNotOffered: a piece of which this node has a replica is not granted; it is copied from the replica.
func TestReplicaIsNotOffered(t *testing.T) {
	_, f, mine := oneFill(t, large(t, 40))
	a, b := mine[0], mine[1]
	var copies atomic.Int64
	f.Config().MayStore = func(p fill.PieceID) bool { return p != a }
	f.Config().Copy = func(_ context.Context, p fill.PieceID, _ [16]byte) (sum [16]byte, ok, soiled bool) {
		copies.Add(1)
		return [16]byte{1}, p == a, false
	}
	if g := f.Accept(offerOf(1, 7, a, b)); g[0] || !g[1] {
		t.Fatalf("granted %v, want only the piece without a replica", g)
	}
	if err := f.Await(t.Context(), a); err != nil || copies.Load() != 1 || !f.Present(a) {
		t.Errorf("%d copies, present %v, %v", copies.Load(), f.Present(a), err)
	}
}

// TestOffer: a piece is granted once; a restarted node has no offers; a piece that was offered but not delivered is
// fetched.
func TestOffer(t *testing.T) {
	j, f, mine := oneFill(t, large(t, 40))
	a, b, c := mine[0], mine[1], mine[2]
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if g := f.Accept(offerOf(1, 7, a, b)); !all(g, true) {
		t.Fatalf("granted %v", g)
	}
	if g := f.Accept(offerOf(0, 9, a, b)); !all(g, false) {
		t.Errorf("granted twice: %v", g)
	}
	read := j.FS.Read.Load()
	wait := func(p fill.PieceID) chan error {
		done := make(chan error, 1)
		_, at, err := f.Config().Files.Origin(p.Ino)
		if err != nil {
			t.Fatal(err)
		}
		go func() { done <- f.Need(ctx, p.Ino, 0, at.Size) }()
		return done
	}
	waits := wait(a)
	sum := make([]byte, 16)
	complete := func(birth uint64, p fill.PieceID, sum []byte) {
		t.Helper()
		if err := f.Complete(fill.Completion{By: 1, Incarnation: birth, Pieces: []fill.PieceID{p}, Sums: [][]byte{sum}}); err != nil {
			t.Error(err)
		}
	}
	complete(6, a, sum) // of another incarnation
	if f.Present(a) {
		t.Error("a piece that was not offered was completed")
	}
	complete(7, a, sum)
	if err := <-waits; err != nil || !f.Present(a) || j.FS.Read.Load() != read {
		t.Errorf("completed: %v, present %v, %d bytes read", err, f.Present(a), j.FS.Read.Load()-read)
	}
	waits = wait(b)
	complete(7, b, nil)
	if err := <-waits; err != nil || j.FS.Read.Load() == read {
		t.Errorf("a piece that was given up was not fetched: %v", err)
	}
	f.Accept(offerOf(1, 7, c))
	waits = wait(c)
	if g := f.Accept(offerOf(1, 8)); len(g) != 0 {
		t.Errorf("granted %v of nothing", g)
	}
	if err := <-waits; err != nil || !f.Present(c) {
		t.Errorf("an offer of an earlier incarnation holds: %v", err)
	}
	if err := f.Complete(fill.Completion{By: 1, Incarnation: 8, Pieces: []fill.PieceID{a}}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a completion without sums: %v", err)
	}
	d := mine[3]
	f.Accept(offerOf(1, 8, d))
	complete(8, d, []byte("short"))
	if f.Present(d) || f.Err() != nil {
		t.Errorf("a completion with half a sum: present %v, %v", f.Present(d), f.Err())
	}
}

// slowJournal is a journal file whose writes wait for the gate.
type slowJournal struct {
	fill.JournalFile
	begun func() // called on each write
	gate  chan struct{}
}

func (s slowJournal) WriteAt(p []byte, off int64) (int, error) {
	s.begun()
	<-s.gate
	return s.JournalFile.WriteAt(p, off)
}

// TestLandedTwice: a piece counts once, even if it is reported again before it is recorded, or twice in one report.
func TestLandedTwice(t *testing.T) {
	const times = 16
	for _, c := range []struct {
		name  string
		calls int // concurrent calls, which share the pieces evenly
	}{{"in one completion", 1}, {"in many", times}} {
		t.Run(c.name, func(t *testing.T) {
			_, f, mine := oneFill(t, large(t, 40))
			p := mine[0]
			_, a, err := f.Config().Files.Origin(p.Ino)
			if err != nil {
				t.Fatal(err)
			}
			begun, gate := make(chan struct{}), make(chan struct{})
			f.SetJournal(func(j fill.JournalFile) fill.JournalFile {
				return slowJournal{j, sync.OnceFunc(func() { close(begun) }), gate}
			})
			if g := f.Accept(offerOf(1, 7, p)); !all(g, true) {
				t.Fatalf("granted %v", g)
			}
			l := fill.Completion{By: 1, Incarnation: 7}
			for range times / c.calls {
				l.Pieces, l.Sums = append(l.Pieces, p), append(l.Sums, make([]byte, 16))
			}
			var calls, near sync.WaitGroup
			near.Add(c.calls)
			for range c.calls {
				calls.Go(func() {
					near.Done()
					if err := f.Complete(l); err != nil {
						t.Error(err)
					}
				})
			}
			<-begun
			near.Wait()
			close(gate)
			calls.Wait()
			got := f.Progress()
			n := f.PresentPieces()
			if got.Files != 1 || got.Bytes != a.Size || n != 1 {
				t.Errorf("%d files and %d bytes in %d pieces, want one of %d", got.Files, got.Bytes, n, a.Size)
			}
		})
	}
}

// TestOfferOfLostNode: pieces offered by a node that was then lost are fetched.
func TestOfferOfLostNode(t *testing.T) {
	_, f, mine := oneFill(t, large(t, 40))
	changed := make(chan struct{})
	var lost atomic.Bool
	f.Config().Watch = func() (cluster.Map, <-chan struct{}) {
		if lost.Load() {
			return stageintest.ClusterMap(2).WithState(1, cluster.Down, ""), nil
		}
		return stageintest.ClusterMap(2), changed
	}
	f.Accept(offerOf(1, 7, mine[0]))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { f.WatchOffers(ctx) })
	done := make(chan error, 1)
	go func() { done <- f.Await(ctx, mine[0]) }()
	lost.Store(true)
	close(changed)
	if err := <-done; err != nil || !f.Present(mine[0]) {
		t.Errorf("not fetched: %v", err)
	}
	cancel()
	wg.Wait()
}

// TestOfferAtClose: a reader that waits for an offered piece is released.
func TestOfferAtClose(t *testing.T) {
	_, f, mine := oneFill(t, large(t, 40))
	f.Accept(offerOf(1, 7, mine[0]))
	done := make(chan error, 1)
	go func() { done <- f.Await(context.Background(), mine[0]) }()
	f.WithdrawAll(true)
	if err := <-done; !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("%v, want ESHUTDOWN", err)
	}
}
