package training

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

type testNode struct {
	*nodetest.Node
	path string
	log  *Log
}

// newJob returns n nodes of a job with a dataset photos, number 1.
func newJob(t *testing.T, n int) ([]*testNode, *nodetest.Registry, *nodetest.Network) {
	t.Helper()
	v := nodetest.View(n)
	v.Datasets = []cluster.Dataset{{ID: 1, Name: "photos", Phase: cluster.Sealed}}
	r, net := nodetest.NewRegistry(v), nodetest.NewNetwork()
	var all []*testNode
	for i := range n {
		x := &testNode{Node: nodetest.Join(t, metadata.NodeID(i), r, net), path: filepath.Join(t.TempDir(), "log")}
		x.start()
		all = append(all, x)
	}
	return all, r, net
}

// start starts the log afresh, as after a restart of the daemon.
func (x *testNode) start() {
	x.log = Open(x, x.path)
	x.Serve(x.log.Handlers())
}

func seconds(s int64) time.Time { return time.Unix(s, 0) }

// reads returns the counts of a mount after n local samples of 100 bytes, each of which waited for up to 2 s.
func reads(n int64) Reads {
	return Reads{Places: Places{Local: Count{n, 100 * n}}, Waits: Waits{First: 1, Buckets: []int64{0, n, 0}, Seconds: 1.5 * float64(n)}}
}

func TestEpochsAreToldApart(t *testing.T) {
	all, _, _ := newJob(t, 2)
	l := all[0].log
	early := reads(2)
	early.First = metadata.TimeOf(seconds(0).Add(time.Second / 2))
	l.Take(seconds(1), 1, early, Following{})
	l.Take(seconds(2), 1, reads(2), Following{Digest: "a"})
	l.Take(seconds(3), 1, reads(5), Following{Digest: "a"})
	l.Take(seconds(4), 1, reads(9), Following{Digest: "a", Epoch: 1})
	l.Take(seconds(5), 1, reads(10), Following{Digest: "a", Epoch: 1})
	all[1].log.Take(seconds(2), 1, reads(7), Following{Digest: "a"})
	got, missing := all[1].log.Epochs(t.Context(), 1)
	if len(missing) > 0 || len(got) != 3 {
		t.Fatalf("%d epochs, without %q", len(got), missing)
	}
	for i, want := range []struct {
		epoch        int
		began, ended int64
		samples      int64
	}{{Unknown, 0, 1, 2}, {0, 2, 3, 3 + 7}, {1, 4, 5, 5}} {
		e := got[i]
		if e.Epoch != want.epoch || e.Local != (Count{want.samples, 100 * want.samples}) || e.Began.Time().Unix() != want.began ||
			e.Ended != metadata.TimeOf(seconds(want.ended)) || e.Waits.Count() != want.samples || e.StallP50 != 2 || e.StallP99 != 2 ||
			e.Waits.Seconds != 1.5*float64(want.samples) || e.Ranks != nil {
			t.Errorf("%+v, want %+v", e, want)
		}
	}
}

// TestPlansOfOneEpoch: a sampler that sets a plan for each epoch reads one epoch after another, also across a restart
// of the daemon. The counts of a prefetch that starts from zero with each plan are added up.
func TestPlansOfOneEpoch(t *testing.T) {
	all, _, _ := newJob(t, 1)
	x := all[0]
	hits := func(n int64) Reads { return Reads{Places: Places{Prefetched: Count{n, 10 * n}}} }
	x.log.Take(seconds(1), 1, hits(3), Following{Digest: "a", Single: true})
	x.log.Take(seconds(2), 1, hits(4), Following{Digest: "a", Single: true})
	x.log.Take(seconds(3), 1, hits(2), Following{Digest: "b", Single: true})
	x.log.Save()
	x.start()
	x.log.Take(seconds(4), 1, hits(1), Following{Digest: "b", Single: true})
	x.log.Take(seconds(5), 1, hits(6), Following{Digest: "c", Single: true})
	var got []int64
	for _, e := range x.log.Here(1) {
		got = append(got, int64(e.Epoch), e.Prefetched.Samples, e.Prefetched.Bytes)
	}
	if want := []int64{0, 4, 40, 1, 3, 30, 2, 5, 50}; !slices.Equal(got, want) {
		t.Errorf("epoch, samples, bytes: %v, want %v", got, want)
	}
}

func TestRanksAreSummedUp(t *testing.T) {
	all, r, net := newJob(t, 3)
	for _, p := range []struct {
		node int
		m    Measured
	}{
		{0, Measured{Rank: 0, Batches: 1}}, // is replaced by the next one
		{0, Measured{Rank: 0, Batches: 10, Samples: 320, Seconds: 8, Waited: 1, FirstBatch: .5, StallP50: .1, StallP99: .2, StallMax: .3, BySource: map[string]int64{"local": 300, "remote": 20}}},
		{0, Measured{Rank: 1, Batches: 10, Samples: 320, Seconds: 8, Waited: 3, FirstBatch: .4, StallP50: .3, StallP99: .4, StallMax: .9, BySource: map[string]int64{"local": 320}}},
		{1, Measured{Rank: 2, Batches: 20, Samples: 640, Seconds: 8, Waited: 0, FirstBatch: .7}},
		{1, Measured{Rank: 2, Epoch: 1, Batches: 20}},
	} {
		p.m.Dataset = "photos"
		if err := all[p.node].log.Post(p.m); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want Ranks, lost ...string) {
		t.Helper()
		got, missing := all[2].log.Epochs(t.Context(), 1)
		if !slices.Equal(missing, lost) || len(got) == 0 {
			t.Fatalf("%d epochs without %q, want those without %q", len(got), missing, lost)
		}
		e := *got[0].Ranks
		if math.Abs(e.StallP50-want.StallP50) > 1e-9 {
			t.Errorf("median of the stall is %v, want %v", e.StallP50, want.StallP50)
		}
		e.StallP50 = want.StallP50
		a, _ := json.Marshal(e)
		b, _ := json.Marshal(want)
		if string(a) != string(b) {
			t.Errorf("the ranks have measured %s, want %s", a, b)
		}
	}
	check(Ranks{Ranks: 3, Batches: 40, Samples: 1280, Seconds: 24, Waited: 4, FirstBatch: .7, StallP50: .1, StallP99: .4, StallMax: .9,
		BySource: map[string]int64{"local": 620, "remote": 20}})
	alone := Ranks{Ranks: 1, Batches: 20, Samples: 640, Seconds: 8, FirstBatch: .7}
	net.Cut(0, syscall.ECONNRESET)
	check(alone, "node0")
	r.SetState(0, cluster.Down)
	check(alone, "node0")
}

// TestPostAfterRemoval: measurements of a rank belong to the dataset that now has the name.
func TestPostAfterRemoval(t *testing.T) {
	all, r, _ := newJob(t, 1)
	r.Change(func(v cluster.View) cluster.View {
		v.Datasets = []cluster.Dataset{{ID: 1, Name: "photos", Phase: cluster.Removed}, {ID: 2, Name: "photos", Phase: cluster.Sealed}}
		return v
	})
	if err := all[0].log.Post(Measured{Dataset: "photos", Batches: 1}); err != nil {
		t.Fatal(err)
	}
	if was, is := all[0].log.Here(1), all[0].log.Here(2); len(was) != 0 || len(is) != 1 {
		t.Errorf("%d epochs of the removed dataset and %d of the new one, want 0 and 1", len(was), len(is))
	}
}

func TestPostRefused(t *testing.T) {
	all, _, _ := newJob(t, 1)
	many := map[string]int64{}
	for i := range maxSources + 1 {
		many[strings.Repeat("x", i)] = 1
	}
	for _, m := range []Measured{
		{Rank: -1}, {Rank: maxRank}, {Epoch: -1}, {Epoch: maxEpoch}, {Batches: -1}, {Samples: -1}, {Seconds: -1}, {StallMax: math.NaN()},
		{Seconds: 1e300}, {Samples: 1 << 60}, {BySource: map[string]int64{"a": 1 << 60}},
		{BySource: many}, {BySource: map[string]int64{"a": -1}}, {BySource: map[string]int64{strings.Repeat("a", maxName+1): 1}},
	} {
		m.Dataset = "photos"
		if err := all[0].log.Post(m); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v, want EINVAL", m, err)
		}
	}
	if err := all[0].log.Post(Measured{Dataset: "other"}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("unknown dataset: %v, want ENOENT", err)
	}
	if got := all[0].log.Here(1); len(got) > 0 {
		t.Errorf("a refused measurement was recorded: %+v", got)
	}
}

// TestMemoryIsBounded: with very many epochs, the oldest ones are dropped.
func TestMemoryIsBounded(t *testing.T) {
	all, _, _ := newJob(t, 1)
	l := all[0].log
	for e := range maxEpochs + 5 {
		l.Take(seconds(int64(e)), 1, reads(int64(e+1)), Following{Digest: "a", Epoch: e})
	}
	if got := l.Here(1); len(got) != maxEpochs || got[0].Epoch != 5 {
		t.Errorf("%d epochs from %d on, want %d from 5 on", len(got), got[0].Epoch, maxEpochs)
	}
	for e := range 3 {
		for rank := range maxMeasured/2 - 1 {
			if err := l.Post(Measured{Dataset: "photos", Epoch: maxEpochs + 10 + e, Rank: rank}); err != nil {
				t.Fatal(err)
			}
		}
	}
	n := 0
	for _, e := range l.Here(1) {
		if e.Ranks != nil {
			n += e.Ranks.Ranks
		}
	}
	if n != 2*(maxMeasured/2-1) {
		t.Errorf("%d ranks are kept from three epochs, want those of two", n)
	}
	for rank := range maxMeasured {
		if err := l.Post(Measured{Dataset: "photos", Epoch: 1, Rank: rank}); err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	if err := l.Post(Measured{Dataset: "photos", Epoch: 1, Rank: maxMeasured}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("one rank too many: %v, want EINVAL", err)
	}
}

// TestDamagedFile: a damaged log file loses only its own epochs.
func TestDamagedFile(t *testing.T) {
	all, _, _ := newJob(t, 1)
	x := all[0]
	for _, text := range []string{"", "{", "[]", `{"1":null}`, `{"1":{}}`, `{"1":{"epochs":{"0":null},"measured":{"0":{"0":null}}}}`} {
		if err := os.WriteFile(x.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		x.start()
		x.log.Take(seconds(1), 1, reads(1), Following{Digest: "a"})
		if got := x.log.Here(1); len(got) != 1 || got[0].Local.Samples != 1 {
			t.Errorf("after %q: %+v", text, got)
		}
	}
}

func TestQuantile(t *testing.T) {
	for _, tt := range []struct {
		buckets []int64
		q, want float64
	}{
		{nil, .5, 0}, {[]int64{0, 0}, .5, 0}, {[]int64{9, 1, 0, 0}, .5, 1}, {[]int64{9, 1, 0, 0}, .99, 2}, {[]int64{0, 0, 0, 3}, .5, 4}, {[]int64{5}, .5, 1},
	} {
		w := Waits{First: 1, Buckets: tt.buckets}
		if got := w.Quantile(tt.q); got != tt.want {
			t.Errorf("Quantile(%v) of %v = %v, want %v", tt.q, tt.buckets, got, tt.want)
		}
	}
}

// FuzzDecode decodes arbitrary files.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"1":{"epochs":{"0":{"epoch":0,"waits":{"first":1,"buckets":[1,2]}}},"measured":{"0":{"1":{"rank":1}}}}}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, b []byte) {
		sets, err := decode(b)
		l := &Log{sets: sets}
		l.Take(seconds(1), 1, reads(1), Following{Digest: "a"})
		if got := l.Here(1); len(got) == 0 {
			t.Errorf("after %v nothing is counted", err)
		}
	})
}
