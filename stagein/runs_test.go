package stagein

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

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// camp is the fills of one dataset on all nodes of a job; each is the Others of
// the rest.
type swarm struct {
	j    *job
	mu   sync.Mutex
	here map[metadata.NodeID]*Fill         // guarded by mu
	come map[metadata.NodeID]chan struct{} // closed when a fill is here

	claims func(to metadata.NodeID, c Offer) error      // before a claim
	landed func(to metadata.NodeID, l Completion) error // before a landing
	sent   func(n int)                                  // before n bytes go to another node
	loads  func(ps []datapath.PiecePut)                 // before they go to another node together
	alone  func()                                       // before something goes there alone
	parcel func(p *datapath.PiecePut) error             // what becomes of one of them there
	lost   func() error                                 // of all of them, on their way
}

func newSwarm(j *job) *swarm {
	c := &swarm{j: j, here: map[metadata.NodeID]*Fill{}, come: map[metadata.NodeID]chan struct{}{}}
	for i := range j.nodes {
		c.come[metadata.NodeID(i)] = make(chan struct{})
	}
	return c
}

// again is a camp like c in which nobody is yet.
func (c *swarm) again() *swarm {
	n := newSwarm(c.j)
	n.claims, n.landed, n.sent, n.loads = c.claims, c.landed, c.sent, c.loads
	n.alone, n.parcel, n.lost = c.alone, c.parcel, c.lost
	return n
}

func (c *swarm) join(node metadata.NodeID, f *Fill) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.here[node] == nil {
		close(c.come[node])
	}
	c.here[node] = f
}

func (c *swarm) fill(ctx context.Context, node metadata.NodeID) (*Fill, error) {
	select {
	case <-c.come[node]:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.here[node], nil
}

func (c *swarm) Offer(ctx context.Context, to metadata.NodeID, q Offer) ([]bool, error) {
	if c.claims != nil {
		if err := c.claims(to, q); err != nil {
			return nil, err
		}
	}
	f, err := c.fill(ctx, to)
	if err != nil {
		return nil, err
	}
	return f.Accept(q), nil
}

func (c *swarm) Put(ctx context.Context, to metadata.NodeID, ino metadata.Ino, p []byte, off int64) error {
	if c.alone != nil {
		c.alone()
	}
	return c.put(ctx, to, ino, p, off)
}

func (c *swarm) put(ctx context.Context, to metadata.NodeID, ino metadata.Ino, p []byte, off int64) error {
	if c.sent != nil {
		c.sent(len(p))
	}
	return c.j.target.Put(ctx, to, ino, p, off)
}

func (c *swarm) PutAll(ctx context.Context, to metadata.NodeID, ps []datapath.PiecePut) ([]error, error) {
	if c.loads != nil {
		c.loads(ps)
	}
	if c.lost != nil {
		if err := c.lost(); err != nil {
			return nil, err
		}
	}
	errs := make([]error, len(ps))
	for i := range ps {
		p := &ps[i]
		if err := c.badParcel(p); err != nil {
			errs[i] = err
			continue
		}
		errs[i] = c.put(ctx, to, p.Ino, bytes.Join(p.Data, nil), p.Off)
	}
	return errs, nil
}

// badParcel is what a node would say of a parcel that is not what was sent.
func (c *swarm) badParcel(p *datapath.PiecePut) error {
	if c.parcel != nil {
		if err := c.parcel(p); err != nil {
			return err
		}
	}
	h := wire.PieceHeader{Ino: p.Ino, Off: p.Off, Len: uint32(p.Len()), Sum: p.Sum}
	return h.Check(bytes.Join(p.Data, nil))
}

func (c *swarm) Complete(ctx context.Context, to metadata.NodeID, l Completion) error {
	if c.landed != nil {
		if err := c.landed(to, l); err != nil {
			return err
		}
	}
	f, err := c.fill(ctx, to)
	if err != nil {
		return err
	}
	return f.Complete(l)
}

// runJob is a job that scans an archive and has runs of a few members.
func runJob(archive []byte, nodes int) *job {
	j := tarJob(archive, nodes)
	j.opts.Fill = Order{Kind: OrderShuffled}
	j.swarm = newSwarm(j)
	j.runSize = 16 << 10
	return j
}

// TestRunsEqualTwin: whoever reads what, every file is what it is in the archive,
// and no byte of the source is read twice after the scan.
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
				j.stripe = 3000
				got, err := j.run(context.Background())
				if err != nil {
					t.Fatalf("%d nodes: %v", nodes, err)
				}
				stageintest.CheckTree(t, got, want)
				if read := j.fs.Read.Load(); read != j.sum.SourceBytes || j.sum.SourceBytes-j.scanned.Read > int64(len(archive)) {
					t.Errorf("%d nodes: %d bytes of %d read after the scan, %d counted", nodes, read-j.scanned.Read, len(archive), j.sum.SourceBytes-j.scanned.Read)
				}
			}
		}
	}
}

// large is an archive of n members of 2000 bytes.
func large(t *testing.T, n int) []byte {
	r := stageintest.Rand(t)
	var members []stageintest.Member
	for i := range n {
		members = append(members, stageintest.TarFile(fmt.Sprintf("d%d/m%d", i%7, i), stageintest.RandBytes(r, 2000)))
	}
	return stageintest.WriteTar(t, tar.FormatUSTAR, members)
}

// TestRunsAreLarge: neighbours are read in one go, not one by one.
func TestRunsAreLarge(t *testing.T) { checkLarge(t, 4) }

// TestRunsAreLargeOnOneNode: so it is on a node that is alone.
func TestRunsAreLargeOnOneNode(t *testing.T) { checkLarge(t, 1) }

// checkLarge has nodes read an archive, and wants few reads.
func checkLarge(t *testing.T, nodes int) {
	t.Helper()
	archive := large(t, 1000)
	j := runJob(archive, nodes)
	j.lim.piece, j.runSize, j.memory = 64<<10, 256<<10, 1<<20
	var reads atomic.Int64
	var once sync.Once
	j.order = func(int) {
		once.Do(func() {
			j.fs.OnRead = func(string, int64) {
				reads.Add(1)
			}
		})
	}
	if _, err := j.run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if most := int64(6 * len(archive) / j.lim.piece); reads.Load() > most {
		t.Errorf("%d reads of 1000 members in %d bytes, want %d at the most", reads.Load(), len(archive), most)
	}
}

// TestLargeIsReadByOwner: what is large goes between no nodes.
func TestLargeIsReadByOwner(t *testing.T) {
	r := stageintest.Rand(t)
	var members []stageintest.Member
	for i := range 12 {
		members = append(members, stageintest.TarFile(fmt.Sprint("large", i), stageintest.RandBytes(r, largePiece+i)), stageintest.TarFile(fmt.Sprint("small", i), stageintest.RandBytes(r, 1000)))
	}
	archive := stageintest.WriteTar(t, tar.FormatUSTAR, members)
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	j := runJob(archive, 3)
	j.stripe, j.lim.piece = 2*largePiece, 64<<10
	var sent atomic.Int64
	j.swarm.sent = func(n int) { sent.Add(int64(n)) }
	got, err := j.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stageintest.CheckTree(t, got, want)
	if n := sent.Load(); n > 12*1000 {
		t.Errorf("%d bytes went between nodes", n)
	}
	if read := j.sum.SourceBytes - j.scanned.Read; read > int64(len(archive)) {
		t.Errorf("%d bytes of %d were read", read, len(archive))
	}
}

// TestRunsAtTrouble: a node that does not grant, or does not learn what was brought
// to it, has all in the end; so have the others.
func TestRunsAtTrouble(t *testing.T) {
	archive := large(t, 200)
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(j *job){
		"claims fail": func(j *job) {
			j.swarm.claims = func(to metadata.NodeID, _ Offer) error {
				if to == 1 {
					return syscall.EHOSTUNREACH
				}
				return nil
			}
		},
		"puts by others fail": func(j *job) {
			var n atomic.Int64
			j.target = &stageintest.MemTarget{OnPut: func(metadata.NodeID, metadata.Ino, int) error {
				if n := n.Add(1); n < 40 && n%4 == 0 { // each piece is tried three times
					return syscall.ETIMEDOUT
				}
				return nil
			}}
		},
		"reads fail": func(j *job) {
			var n atomic.Int64
			j.order = func(int) {
				spoil := func() error {
					if n := n.Add(1); n < 40 && n%4 == 0 {
						return syscall.ETIMEDOUT
					}
					return nil
				}
				j.fs.FailRead.Store(&spoil)
			}
		},
	} {
		j := runJob(archive, 3)
		spoil(j)
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		got, err := j.run(ctx)
		cancel()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		stageintest.CheckTree(t, got, want)
	}
}

// oneFill is the fill of node 0 of two, with all that is scanned.
func oneFill(t *testing.T, archive []byte) (j *job, f *Fill, mine []PieceID) {
	t.Helper()
	j = runJob(archive, 2)
	j.target = &stageintest.MemTarget{Objects: map[stageintest.ObjectKey][]byte{}}
	m := stageintest.ClusterMap(2)
	var records bytes.Buffer
	cfg := &PlanConfig{
		FS: j.fs, Request: Request{Source: j.path, Name: "ds", Options: j.opts}, Dataset: 3, Map: m, UID: jobUID, GID: jobGID, Stripe: j.stripe,
	}
	s, err := Scan(context.Background(), cfg, &records)
	if err != nil {
		t.Fatal(err)
	}
	files, err := stageintest.FilesOf(records.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if f, err = j.filler(m, 0, s, files, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if mine, err = f.list(m); err != nil || len(mine) < 3 {
		t.Fatalf("%d pieces, %v", len(mine), err)
	}
	return j, f, mine
}

func offerOf(by metadata.NodeID, incarnation uint64, ps ...PieceID) Offer {
	return Offer{By: by, Incarnation: incarnation, Pieces: ps}
}

func all(granted []bool, want bool) bool {
	for _, g := range granted {
		if g != want {
			return false
		}
	}
	return true
}

// TestClaim: a piece is granted once; who is born again has claimed nothing; and
// what was not brought is fetched.
func TestClaim(t *testing.T) {
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
	read := j.fs.Read.Load()
	wait := func(p PieceID) chan error {
		done := make(chan error, 1)
		_, at, err := f.cfg.Files.Origin(p.Ino)
		if err != nil {
			t.Fatal(err)
		}
		go func() { done <- f.Need(ctx, p.Ino, 0, at.Size) }()
		return done
	}
	waits := wait(a)
	sum := make([]byte, 16)
	landing := func(birth uint64, p PieceID, sum []byte) {
		t.Helper()
		if err := f.Complete(Completion{By: 1, Incarnation: birth, Pieces: []PieceID{p}, Sums: [][]byte{sum}}); err != nil {
			t.Error(err)
		}
	}
	landing(6, a, sum) // of another life
	if f.present.has(a) {
		t.Error("what was not claimed has landed")
	}
	landing(7, a, sum)
	if err := <-waits; err != nil || !f.present.has(a) || j.fs.Read.Load() != read {
		t.Errorf("landed: %v, here %v, %d bytes read", err, f.present.has(a), j.fs.Read.Load()-read)
	}
	waits = wait(b)
	landing(7, b, nil)
	if err := <-waits; err != nil || j.fs.Read.Load() == read {
		t.Errorf("what was given up was not fetched: %v", err)
	}
	f.Accept(offerOf(1, 7, c))
	waits = wait(c)
	if g := f.Accept(offerOf(1, 8)); len(g) != 0 {
		t.Errorf("granted %v of nothing", g)
	}
	if err := <-waits; err != nil || !f.present.has(c) {
		t.Errorf("a claim of an earlier life holds: %v", err)
	}
	if err := f.Complete(Completion{By: 1, Incarnation: 8, Pieces: []PieceID{a}}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a landing without sums: %v", err)
	}
	d := mine[3]
	f.Accept(offerOf(1, 8, d))
	landing(8, d, []byte("short"))
	if f.present.has(d) || f.Err() != nil {
		t.Errorf("a landing with half a sum: here %v, %v", f.present.has(d), f.Err())
	}
}

// slowJournal is a journal file that is not written before its gate is open.
type slowJournal struct {
	journalFile
	begun func() // is told of each write
	gate  chan struct{}
}

func (s slowJournal) WriteAt(p []byte, off int64) (int, error) {
	s.begun()
	<-s.gate
	return s.journalFile.WriteAt(p, off)
}

// TestLandedTwice: a piece counts once, also if it is told of again before it has been
// taken note of, or with itself.
func TestLandedTwice(t *testing.T) {
	const times = 16
	for _, c := range []struct {
		name  string
		calls int // at a time, each with as many pieces as there are left
	}{{"in one landing", 1}, {"in many", times}} {
		t.Run(c.name, func(t *testing.T) {
			_, f, mine := oneFill(t, large(t, 40))
			p := mine[0]
			_, a, err := f.cfg.Files.Origin(p.Ino)
			if err != nil {
				t.Fatal(err)
			}
			begun, gate := make(chan struct{}), make(chan struct{})
			f.journal.f = slowJournal{f.journal.f, sync.OnceFunc(func() { close(begun) }), gate}
			if g := f.Accept(offerOf(1, 7, p)); !all(g, true) {
				t.Fatalf("granted %v", g)
			}
			l := Completion{By: 1, Incarnation: 7}
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
			f.present.mu.Lock()
			n := f.present.n
			f.present.mu.Unlock()
			if got.Files != 1 || got.Bytes != a.Size || n != 1 {
				t.Errorf("%d files and %d bytes in %d pieces, want one of %d", got.Files, got.Bytes, n, a.Size)
			}
		})
	}
}

// TestClaimOfLostNode: what a lost node has claimed is fetched.
func TestClaimOfLostNode(t *testing.T) {
	_, f, mine := oneFill(t, large(t, 40))
	changed := make(chan struct{})
	var lost atomic.Bool
	f.cfg.Watch = func() (cluster.Map, <-chan struct{}) {
		if lost.Load() {
			return stageintest.ClusterMap(2).WithState(1, cluster.Down, ""), nil
		}
		return stageintest.ClusterMap(2), changed
	}
	f.Accept(offerOf(1, 7, mine[0]))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { f.watchOffers(ctx) })
	done := make(chan error, 1)
	go func() { done <- f.await(ctx, mine[0], f.ask) }()
	lost.Store(true)
	close(changed)
	if err := <-done; err != nil || !f.present.has(mine[0]) {
		t.Errorf("not fetched: %v", err)
	}
	cancel()
	wg.Wait()
}

// TestClaimAtClose: who waits for a claimed piece is let go.
func TestClaimAtClose(t *testing.T) {
	_, f, mine := oneFill(t, large(t, 40))
	f.Accept(offerOf(1, 7, mine[0]))
	done := make(chan error, 1)
	go func() { done <- f.await(context.Background(), mine[0], f.ask) }()
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.withdraw(func(metadata.NodeID) bool { return true })
	if err := <-done; !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("%v, want ESHUTDOWN", err)
	}
}
