package simulate

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

const mb = 1_000_000

// small returns a job with 1,024 files of 100 kB: 32 steps an epoch with 4 ranks and 8 samples.
func small() Job {
	return Job{
		Sizes: slices.Repeat([]int64{100_000}, 1024), Nodes: 4, Ranks: 1, Epochs: 3, Batch: 8, Step: 10 * time.Millisecond, Workers: 2, Prefetch: 2,
		Source: Device{Bandwidth: 100 * mb}, Ahead: 64 * mb, Seed: 1,
	}
}

func mustRun(t *testing.T, j Job, p Policy) Result {
	t.Helper()
	r, err := Run(&j, p)
	if err != nil {
		t.Fatalf("%s: %v", p, err)
	}
	return r
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within*math.Abs(want)+1e-9 {
		t.Errorf("%s = %.4f, want %.4f within %.1f %%", what, got, want, 100*within)
	}
}

// TestByHand: cases that can be solved by hand.
func TestByHand(t *testing.T) {
	const bytes, steps = 1024 * 100_000, 32
	t.Run("direct is bytes over bandwidth where the source is the limit", func(t *testing.T) {
		j := small()
		j.Source.Bandwidth = 10 * mb
		r := mustRun(t, j, Direct)
		for i, e := range r.Epochs {
			near(t, "epoch", e.Seconds, bytes/10.0/mb+0.01, 1e-6) // the last step follows
			near(t, "requests", e.Requests, 3*1024, 0)
			if e.Source != bytes || e.Local+e.Remote+e.Wire != 0 {
				t.Errorf("epoch %d: %+v, want all %d bytes from the source", i, e, bytes)
			}
		}
		near(t, "source bytes", r.SourceBytes, 3, 0)
	})
	t.Run("first batches are loaded side by side", func(t *testing.T) {
		j := small()
		j.Source.Bandwidth = 10 * mb
		near(t, "first batch", mustRun(t, j, Direct).FirstBatch, 4*2*8*100_000/10.0/mb, 1e-6) // by 2 workers each
	})
	t.Run("direct is the requests where their rate is the limit", func(t *testing.T) {
		j := small()
		j.Source = Device{Bandwidth: 1 << 40, IOPS: 1000}
		near(t, "epoch", mustRun(t, j, Direct).Epochs[1].Seconds, 3*1024/1000.0+0.01, 1e-3)
	})
	t.Run("direct is the latencies where one reader has no other limit", func(t *testing.T) {
		j := small()
		j.Nodes, j.Workers, j.Step, j.Source = 1, 1, 0, Device{Bandwidth: 1 << 50, Latency: time.Millisecond}
		near(t, "epoch", mustRun(t, j, Direct).Epochs[1].Seconds, 3*1024*0.001, 1e-3)
	})
	t.Run("nothing is the limit", func(t *testing.T) {
		j := small()
		j.Source.Bandwidth = 1 << 50
		for _, p := range Policies {
			r := mustRun(t, j, p)
			near(t, string(p), r.Seconds, 3*steps*0.01, 1e-3)
			if r.FirstBatch > 1e-6 {
				t.Errorf("%s: first batch after %v s", p, r.FirstBatch)
			}
		}
	})
	t.Run("stage first takes the staging, and then steps", func(t *testing.T) {
		r := mustRun(t, small(), StageFirst)
		near(t, "staged", r.Staged, bytes/100.0/mb, 1e-6)
		near(t, "first batch", r.FirstBatch, r.Staged, 1e-6)
		near(t, "all", r.Seconds, r.Staged+3*steps*0.01, 1e-6)
		near(t, "stall", r.Stall, r.Staged/r.Seconds, 1e-6)
	})
	t.Run("a plan hides all of staging but the first batches", func(t *testing.T) {
		r := mustRun(t, small(), Plan)
		near(t, "first batch", r.FirstBatch, 4*8*100_000/100.0/mb, 1e-6)
		near(t, "first epoch", r.Epochs[0].Seconds, bytes/100.0/mb+0.01, 1e-6)
		near(t, "second", r.Epochs[1].Seconds, steps*0.01, 1e-6)
		near(t, "source bytes", r.SourceBytes, 1, 1e-6)
	})
	t.Run("the network is the limit", func(t *testing.T) {
		j := small()
		j.Network.Bandwidth = 10 * mb
		e := mustRun(t, j, Overlap).last()
		near(t, "remote", float64(e.Remote), 0.75*bytes, 0.05)
		near(t, "epoch", e.Seconds, 0.75*bytes/4/(10*mb), 0.15)
	})
	t.Run("half of the dataset fits", func(t *testing.T) {
		j := small()
		j.Room = 1024 * 100 << 10 / 8
		e := mustRun(t, j, Overlap).last()
		near(t, "of the source", float64(e.Source), 0.5*bytes, 0.1)
		if e.SourceBytes != e.Source {
			t.Errorf("%d bytes read from the source for %d bytes of samples", e.SourceBytes, e.Source)
		}
	})
	t.Run("runs need fewer requests than files", func(t *testing.T) {
		j := small()
		j.Room, j.Archive = 1024*100<<10/8, true
		near(t, "requests", mustRun(t, j, ChunkWise).last().Requests/mustRun(t, j, Plan).last().Requests, 100_000/float64(runBytes), 0.01)
	})
	t.Run("replicas of all make reads local", func(t *testing.T) {
		j := small()
		j.Network.Bandwidth, j.Step = 1000*mb, 100*time.Millisecond
		r := mustRun(t, j, Replicas)
		if e := r.last(); e.Remote != 0 || e.Replica == 0 || e.Local+e.Replica != bytes {
			t.Errorf("last epoch %+v, want all local or from replicas", e)
		}
		j.Room = 1024 * 100 << 10 / 4 // only for the node's own files
		if e := mustRun(t, j, Replicas).last(); float64(e.Replica) > 0.02*bytes {
			t.Errorf("%d bytes from replicas, but there is no room for replicas", e.Replica)
		}
	})
}

// TestLocalityIsSparing: with 4 nodes and 32 samples a rank, matching surplus to deficit leaves 6.1 % of samples
// (computed by hand from a multinomial's deviation).
func TestLocalityIsSparing(t *testing.T) {
	j := small()
	j.Sizes, j.Batch = slices.Repeat([]int64{100}, 64_000), 32
	l, p := mustRun(t, j, Locality).last(), mustRun(t, j, Plan).last()
	near(t, "wire", float64(l.Wire)/float64(p.Wire), 0.061/0.75, 0.1)
}

// TestDeals: every sampler deals every file, and equally many to each rank; locality has the global batches of the
// plain sampler.
func TestDeals(t *testing.T) {
	for _, n := range []int{1, 7, 8, 100, 1000, 1031} {
		for _, p := range []Policy{Plan, Locality, ChunkWise} {
			j := small()
			j.Sizes, j.Nodes, j.Ranks = make([]int64, n), 2, 2
			if n < 4 {
				j.Nodes, j.Ranks = 1, 1
			}
			r := &run{job: &j, policy: p, at: j.place(), world: j.Nodes * j.Ranks}
			plain := &run{job: &j, policy: Plan, at: r.at, world: r.world}
			ranks, plains := r.deal(1), plain.deal(1)
			seen := make(map[int32]int)
			for k := range ranks {
				if len(ranks[k]) != len(ranks[0]) {
					t.Errorf("%s of %d files: rank %d has %d samples, rank 0 has %d", p, n, k, len(ranks[k]), len(ranks[0]))
				}
				for _, f := range ranks[k] {
					seen[f]++
				}
			}
			if len(seen) != n {
				t.Errorf("%s: %d of %d files are read", p, len(seen), n)
			}
			if p != Locality {
				continue
			}
			for from := 0; from < len(ranks[0]); from += j.Batch {
				if got, want := global(ranks, from, j.Batch), global(plains, from, j.Batch); !slices.Equal(got, want) {
					t.Errorf("%d files: global batch at %d is %v, want %v", n, from, got, want)
				}
			}
		}
	}
}

func global(ranks [][]int32, from, n int) (all []int32) {
	for _, r := range ranks {
		all = append(all, r[from:min(len(r), from+n)]...)
	}
	slices.Sort(all)
	return all
}

// TestFasterIsNeverSlower: more bandwidth, less latency or more requests a second never lengthen a job, whatever the
// job.
func TestFasterIsNeverSlower(t *testing.T) {
	const seed = 20
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		j := randomJob(rng)
		p := Policies[rng.IntN(len(Policies))]
		slow := mustRun(t, j, p)
		k := j
		d := []*Device{&k.Source, &k.Disk, &k.Network}[rng.IntN(3)]
		f := 1 + 3*rng.Float64()
		d.Bandwidth, d.IOPS, d.Latency = int64(float64(d.Bandwidth)*f), int64(float64(d.IOPS)*f), time.Duration(float64(d.Latency)/f)
		fast := mustRun(t, k, p)
		slack := 1e-9
		if p != Direct && p != StageFirst { // their staging and copying depend on when the source and links were idle
			slack = 0.02
		}
		if fast.Seconds > slow.Seconds*(1+slack) {
			t.Errorf("%s: %.3f s with %+v, and %.3f s %.2f times as fast: %+v", p, slow.Seconds, j.withoutSizes(), fast.Seconds, f, k.withoutSizes())
		}
	}
}

func (j Job) withoutSizes() Job { j.Sizes = nil; return j }

func randomJob(rng *rand.Rand) Job {
	j := Job{Nodes: 1 + rng.IntN(6), Ranks: 1 + rng.IntN(3), Epochs: 1 + rng.IntN(4), Batch: 1 + rng.IntN(16), Step: time.Duration(rng.IntN(50)) * time.Millisecond,
		Workers: 1 + rng.IntN(4), Prefetch: 1 + rng.IntN(3), Decode: time.Duration(rng.IntN(3)) * time.Millisecond, Async: rng.IntN(2) == 0, Archive: rng.IntN(2) == 0,
		Ahead: rng.Int64N(40 * mb), Seed: rng.Uint64()}
	j.Copies = rng.IntN(j.Nodes)
	j.Source = Device{time.Duration(rng.IntN(5)) * time.Millisecond, mb + rng.Int64N(100*mb), rng.Int64N(2) * (1 + rng.Int64N(5000))}
	j.Disk = Device{time.Duration(rng.IntN(200)) * time.Microsecond, rng.Int64N(2) * (mb + rng.Int64N(500*mb)), 0}
	j.Network = Device{time.Duration(rng.IntN(900)) * time.Microsecond, rng.Int64N(3) * (mb + rng.Int64N(100*mb)), 0}
	j.Sizes, _ = Lognormal(j.Nodes*j.Ranks+rng.IntN(2000), 1+rng.Int64N(200_000), rng.Float64(), 1)
	if rng.IntN(2) == 0 {
		j.Room = 1 + rng.Int64N(100*mb)
	}
	return j
}

// TestAccounts: bytes are conserved, and no epoch is shorter than its steps.
func TestAccounts(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 0))
	for range 200 {
		j := randomJob(rng)
		total := int64(0)
		for _, s := range j.Sizes {
			total += s
		}
		for _, p := range Policies {
			r := mustRun(t, j, p)
			for i, e := range r.Epochs {
				if sum := e.Local + e.Replica + e.Remote + e.Source; sum < total {
					t.Errorf("%s: epoch %d reads %d bytes of %d", p, i+1, sum, total)
				}
				if e.Stall < 0 || e.Stall > 1 || math.IsNaN(e.Stall) || e.Waited > e.Seconds*(1+1e-9) {
					t.Errorf("%s: epoch %d: %+v", p, i+1, e)
				}
			}
			if p != Direct && r.Fits >= 1 && math.Abs(r.SourceBytes-1) > 1e-6 {
				t.Errorf("%s: %.3f of the dataset is read from the source, want 1 (%+v)", p, r.SourceBytes, j.withoutSizes())
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Job)
		want   string
	}{
		"no files":       {func(j *Job) { j.Sizes = nil }, "files 0"},
		"no nodes":       {func(j *Job) { j.Nodes = 0 }, "nodes 0: give 1 to"},
		"too many ranks": {func(j *Job) { j.Nodes, j.Ranks = 100, 64 }, "1024 files for 6400 ranks"},
		"negative step":  {func(j *Job) { j.Step = -1 }, "a time is 0 or more"},
		"negative size":  {func(j *Job) { j.Sizes[7] = -1 }, "file 8 has -1 bytes"},
		"overflow":       {func(j *Job) { j.Sizes[0], j.Sizes[1] = math.MaxInt64, math.MaxInt64 }, "give smaller or fewer files"},
		"no source":      {func(j *Job) { j.Source = Device{} }, "--source-bandwidth"},
		"negative disk":  {func(j *Job) { j.Disk.Bandwidth = -4 }, "disk:"},
		"copies":         {func(j *Job) { j.Copies = 4 }, "replicas 4 of a file on 4 nodes"},
	} {
		j := small()
		c.change(&j)
		if _, err := Run(&j, Plan); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
	j := small()
	j.Nodes, j.Batch = -1, 0
	if err := j.Check(); err == nil || !strings.Contains(err.Error(), "nodes") || !strings.Contains(err.Error(), "batch") {
		t.Errorf("Check() = %v, want both complaints", err)
	}
	if _, err := ParsePolicy("fast"); err == nil || !strings.Contains(err.Error(), "chunk-wise") {
		t.Errorf("ParsePolicy = %v, want the names", err)
	}
	for _, sigma := range []float64{-1, math.NaN(), 5} {
		if _, err := Lognormal(10, 10, sigma, 1); err == nil {
			t.Errorf("sigma %v is accepted", sigma)
		}
	}
}

func TestLognormalHasItsMean(t *testing.T) {
	for _, sigma := range []float64{0, 0.5, 2} {
		s, err := Lognormal(5000, 110_000, sigma, 3)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, n := range s {
			sum += float64(n)
		}
		near(t, "mean", sum/5000, 110_000, 1e-3)
	}
}

func TestReadSizes(t *testing.T) {
	got, err := ReadSizes(strings.NewReader("# sizes\n110 a b.jpg\n\n 0\tempty\n7\n"))
	if err != nil || !slices.Equal(got, []int64{110, 0, 7}) {
		t.Errorf("ReadSizes = %v, %v", got, err)
	}
	for _, bad := range []string{"", "# nothing\n", "a.jpg 110\n", "-1 x\n", "99999999999999999999 x\n", strings.Repeat("9", 2<<20)} {
		if got, err := ReadSizes(strings.NewReader(bad)); err == nil {
			t.Errorf("ReadSizes(%.20q) = %v, want an error", bad, got)
		}
	}
}

func FuzzReadSizes(f *testing.F) {
	f.Add([]byte("110 a\n# b\n7\n"))
	f.Add([]byte("\x00\n-1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		sizes, err := ReadSizes(bytes.NewReader(b))
		if (err == nil) != (len(sizes) > 0) {
			t.Errorf("%d sizes, and error %v", len(sizes), err)
		}
		if slices.ContainsFunc(sizes, func(n int64) bool { return n < 0 }) {
			t.Error("a negative size")
		}
	})
}

// TestSVG: the picture is XML, has a bar for each result, and needs no other file.
func TestSVG(t *testing.T) {
	var rs []Result
	for _, p := range Policies {
		rs = append(rs, mustRun(t, small(), p))
	}
	var b bytes.Buffer
	if err := SVG(&b, rs); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), `<rect class="step"`); n != len(Policies) {
		t.Errorf("%d bars, want %d", n, len(Policies))
	}
	if strings.Contains(strings.ReplaceAll(b.String(), "http://www.w3.org/2000/svg", ""), "http") || !strings.Contains(b.String(), "prefers-color-scheme: dark") {
		t.Error("the picture refers to another file, or has no dark scheme")
	}
	for d := xml.NewDecoder(&b); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestTable(t *testing.T) {
	j := small()
	j.Room = 1024 * 100 << 10 / 8
	var rs []Result
	for _, p := range Policies {
		rs = append(rs, mustRun(t, j, p))
	}
	var b bytes.Buffer
	if err := Table(&b, &j, rs); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1024 files, 97.7 MiB", "direct", "chunk-wise", "4 nodes with room for 12.5 MiB each hold 50 % of the files", "nodes would hold all"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}
