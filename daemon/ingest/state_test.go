package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/ingest"
)

// stagerOf returns the stager of node 1 of n, with only the files of its stage-ins.
func stagerOf(t testing.TB, n int) (*Stager, *nodetest.Registry) {
	t.Helper()
	r := nodetest.NewRegistry(nodetest.View(n))
	x := nodetest.Join(t, 1, r, nodetest.NewNetwork())
	return &Stager{cfg: Config{
		Ctx: t.Context(), Node: x, Job: &job.File{Hosts: nodetest.Hosts(n), Self: 1}, Tasks: tasks.New(x, time.Second),
		Data: &dataset.Datasets{Files: dataset.NewFiles(t.TempDir(), x)},
	}}, r
}

// savedState returns a stager that has saved a state, and that state.
func savedState(t testing.TB) (*Stager, []byte) {
	t.Helper()
	s, _ := stagerOf(t, 3)
	c := s.newCoordinator(cluster.Dataset{ID: 7, Attempt: 3, Name: "set", Coordinator: 1}, stagein.Request{})
	c.plan = &stagein.Plan{
		Dataset: 7, Map: cluster.NewMap(1, nodetest.Hosts(3)), Parts: []stagein.Part{{Node: 0}, {Index: 1, Node: 1}},
		Origins: stagein.Origins{Since: 5}, Skips: []stagein.Skip{{Path: "x", Error: "y"}},
	}
	c.initPartsLocked(2)
	c.parts[0] = partState{fetched: true, progress: stagein.Progress{SourceBytes: 11}, pieces: []stagein.Piece{{Size: 3}}}
	c.parts[1] = partState{wasted: 13, lost: []metadata.NodeID{2}, progress: stagein.Progress{SourceBytes: 17}}
	if err := os.MkdirAll(c.dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.path(dataset.RecordsFile(0)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(s.cfg.Data.Files.Path(7, dataset.State))
	if err != nil {
		t.Fatal(err)
	}
	return s, b
}

// TestResume: the saved state suffices to resume. Pieces fetched by another node, or before a reboot, do not count as
// present.
func TestResume(t *testing.T) {
	s, b := savedState(t)
	for _, c := range []struct {
		name    string
		change  func(p *state)
		fetched bool
	}{
		{"by the same node", func(*state) {}, true},
		{"by another", func(p *state) { p.Coordinator = 2 }, false},
		{"before a reboot", func(p *state) { p.Boot = "another" }, false},
	} {
		p, err := s.parseState(b, 7)
		if err != nil {
			t.Fatal(err)
		}
		c.change(p)
		x := s.newCoordinator(cluster.Dataset{ID: 7, Attempt: 4, Reading: true}, stagein.Request{})
		x.resume(p)
		if !x.resumed || x.plan.Origins.Since != 5 || len(x.plan.Skips) != 1 || x.parts[1].wasted != 13 || len(x.parts[1].lost) != 1 {
			t.Errorf("%s: %+v of %+v", c.name, x.parts, x.plan)
		}
		if y := x.parts[0]; y.fetched != c.fetched || c.fetched && (y.progress.SourceBytes != 11 || len(y.pieces) != 1) {
			t.Errorf("%s: fetched: %+v", c.name, y)
		}
	}
}

func FuzzState(f *testing.F) {
	s, b := savedState(f)
	f.Add(b)
	for _, bad := range []func(p *state){
		func(p *state) { p.Plan = nil },
		func(p *state) { p.Parts = p.Parts[:1] },
		func(p *state) { p.Plan.Parts[1].Node = 9 },
		func(p *state) { p.Plan.Parts[1].Index = 0 },
		func(p *state) { p.Plan.Map = cluster.NewMap(1, []string{"n0"}) },
		func(p *state) { p.Plan.Dataset = 8 },
	} {
		p, err := s.parseState(b, 7)
		if err != nil {
			f.Fatal(err)
		}
		bad(p)
		c, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		if _, err := s.parseState(c, 7); err == nil {
			f.Errorf("%s is accepted", c)
		}
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := s.parseState(b, 7)
		if err != nil {
			return
		}
		c := s.newCoordinator(cluster.Dataset{ID: 7, Reading: true}, stagein.Request{})
		c.resume(p)
		for i := range c.parts {
			c.restartPart(i, 0)
		}
	})
}

// TestNewestState: of a thousand nodes, enough are asked concurrently that slow ones do not add up, and the newest
// state wins; a node that cannot be asked may have it.
func TestNewestState(t *testing.T) {
	var nodes []metadata.NodeID
	for i := range 1000 {
		nodes = append(nodes, metadata.NodeID(i))
	}
	var asked atomic.Int32
	many := make(chan struct{})
	slow := func(ctx context.Context, id metadata.NodeID) (*state, error) {
		if asked.Add(1) == 16 {
			close(many)
		}
		select {
		case <-many: // no node answers before that many were asked
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		switch id {
		case 17, 612:
			return &state{Attempt: 2, Version: int(id)}, nil
		case 999:
			return &state{Attempt: 1, Version: 5000}, nil
		}
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	best, from, err := newestState(ctx, nodes, slow)
	if err != nil || from != 612 || best == nil || best.Version != 612 || asked.Load() != 1000 {
		t.Errorf("%+v of node %d, %v; %d were asked", best, from, err, asked.Load())
	}
	_, _, err = newestState(ctx, nodes, func(ctx context.Context, id metadata.NodeID) (*state, error) {
		if id == 700 {
			return nil, syscall.EHOSTDOWN
		}
		return nil, nil
	})
	if !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("with a node that cannot be asked: %v", err)
	}
}

// lateAttempt returns the coordinator of attempt 3, on a node that knows of attempt and has its files as a standby.
func lateAttempt(t *testing.T, attempt int) (c *Coordinator, files map[string][]byte) {
	t.Helper()
	s, r := stagerOf(t, 2)
	ds := cluster.Dataset{ID: 7, Attempt: 3, Name: "set", Coordinator: 1, Phase: cluster.Staging}
	c = s.newCoordinator(ds, stagein.Request{Options: stagein.Options{OnError: stagein.OnErrorSkip}})
	ds.Attempt = attempt
	r.Change(func(v cluster.View) cluster.View { v.Datasets = []cluster.Dataset{ds}; return v })
	if err := os.MkdirAll(s.cfg.Data.Files.Dir(7), 0o700); err != nil {
		t.Fatal(err)
	}
	files = make(map[string][]byte)
	for _, name := range []string{
		dataset.Origins, dataset.Order, dataset.Manifest, dataset.AllSkips, dataset.State, dataset.RecordsFile(0), dataset.SkipsFile(0),
	} {
		files[name] = []byte("of a standby")
		if err := os.WriteFile(s.cfg.Data.Files.Path(7, name), files[name], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c, files
}

// emptyFile returns a file of a part without records.
func emptyFile(t *testing.T, name string) []byte {
	t.Helper()
	var b bytes.Buffer
	if name == dataset.RecordsFile(0) {
		if err := manifest.NewWriter(&b).Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// TestLateAttempt: a late attempt overwrites no files of a later one on this node; the newest attempt replaces all of
// them.
func TestLateAttempt(t *testing.T) {
	for _, attempt := range []int{3, 4} {
		c, files := lateAttempt(t, attempt)
		late := attempt > c.ds.Attempt
		if err := os.MkdirAll(c.dir(), 0o700); err != nil {
			t.Fatal(err)
		}
		c.plan = &stagein.Plan{Dataset: 7, Parts: []stagein.Part{{Node: 0}}}
		c.initPartsLocked(1)
		for _, name := range []string{dataset.RecordsFile(0), dataset.SkipsFile(0)} { // fetched from node 0
			if err := os.WriteFile(c.path(name), emptyFile(t, name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for what, err := range map[string]error{
			"origins": c.keepOrigins(stagein.Origins{Since: 9}), "state": c.save(), "manifest and skips": c.build(t.Context()),
		} {
			if late != (err != nil) || err != nil && !errors.Is(err, syscall.ESTALE) {
				t.Errorf("attempt 3 in attempt %d: %s: %v", attempt, what, err)
			}
		}
		for name, was := range files {
			now, err := os.ReadFile(c.s.cfg.Data.Files.Path(7, name))
			fetched := name == dataset.RecordsFile(0) || name == dataset.SkipsFile(0) // no other node wants them
			if same := err == nil && bytes.Equal(now, was); same != (late || fetched) {
				t.Errorf("attempt 3 in attempt %d: %s is %q, %v", attempt, name, now, err)
			}
		}
		if err := c.yield(); !errors.Is(err, syscall.ECANCELED) {
			t.Error(err)
		}
		if _, err := os.Stat(c.dir()); !os.IsNotExist(err) {
			t.Errorf("something is left of the attempt: %v", err)
		}
	}
}

// TestRestartPart: bytes that were read twice are counted; on the same node, that node counts them.
func TestRestartPart(t *testing.T) {
	s, r := stagerOf(t, 3)
	c := s.newCoordinator(cluster.Dataset{ID: 7}, stagein.Request{})
	c.plan = &stagein.Plan{Dataset: 7, Parts: []stagein.Part{{Node: 0}, {Index: 1, Node: 2}}}
	c.initPartsLocked(2)
	report := func(i int, n int64) {
		b, err := json.Marshal(partReport{Progress: stagein.Progress{SourceBytes: n}, Boundary: new(ingest.Boundary)})
		if err != nil {
			t.Fatal(err)
		}
		c.see(i, tasks.State{Detail: b})
	}
	want := func(n, again int64) {
		t.Helper()
		if p, _ := c.progress(); p.SourceBytes != n || p.Again != again {
			t.Errorf("%d bytes, %d again, want %d, %d", p.SourceBytes, p.Again, n, again)
		}
	}
	report(0, 100)
	report(1, 50)
	want(150, 0)
	report(0, 90) // the node's count lags
	want(150, 0)
	c.restartPart(1, 2) // the same node adds up the bytes of its tries
	want(150, 1)
	report(1, 70)
	want(170, 1)
	c.restartPart(0, 1)
	report(0, 30)
	want(200, 2)
	if c.plan.Parts[0].Node != 1 || c.plan.Parts[0].Try != 1 {
		t.Errorf("part %+v", c.plan.Parts[0])
	}
	c.see(0, tasks.State{Detail: []byte("nonsense")})
	want(200, 2)
	if c.lacksBoundary(1) || c.lacksBoundary(2) {
		t.Error("the boundary of part 1 is not known")
	}
	p := stagein.Part{Index: 1, Node: 2}
	if id, ok := c.nextNode(1, p, false); !ok || id != 2 {
		t.Errorf("after a restart node %d reads, want 2", id)
	}
	r.SetState(2, cluster.Down)
	for want := range 2 {
		p.Try = uint16(want)
		id, ok := c.nextNode(1, p, true)
		if !ok || id == 2 || slices.Contains(c.parts[1].lost[1:], id) {
			t.Errorf("after %v were lost: node %d, %v", c.parts[1].lost, id, ok)
		}
		p.Node = id
	}
	if id, ok := c.nextNode(1, p, true); ok {
		t.Errorf("after all were lost: node %d", id)
	}
}

// TestCandidates: standbys remain standbys, followed by the next nodes in order.
func TestCandidates(t *testing.T) {
	s, r := stagerOf(t, 5)
	c := s.newCoordinator(cluster.Dataset{ID: 7}, stagein.Request{})
	if got := c.candidates(); !slices.Equal(got, []metadata.NodeID{2, 3, 4, 0}) {
		t.Errorf("candidates %v", got)
	}
	c.standby = []metadata.NodeID{4, 3}
	r.SetState(3, cluster.Down)
	if got := c.candidates(); !slices.Equal(got, []metadata.NodeID{4, 2, 0}) {
		t.Errorf("with a standby that is lost: %v", got)
	}
}

// TestStandbyManifest: a standby loads only the manifest that was agreed on.
func TestStandbyManifest(t *testing.T) {
	s, r := stagerOf(t, 2)
	ds := cluster.Dataset{ID: 7, Digest: "good", Phase: cluster.Publishing}
	r.Change(func(v cluster.View) cluster.View { v.Datasets = []cluster.Dataset{ds}; return v })
	if has, err := s.TakeStandby(ds); has || err != nil || s.Standby() != nil {
		t.Errorf("without a manifest: %v, %v", has, err)
	}
	if err := os.MkdirAll(s.cfg.Data.Files.Dir(7), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, digest := range []string{"good", "bad"} {
		for name, b := range map[string]string{standbyFile: digest, dataset.Manifest: "m"} {
			if err := os.WriteFile(s.cfg.Data.Files.Path(7, name), []byte(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.Standby(); got[7] != digest {
			t.Errorf("standby for %v", got)
		}
		if has, err := s.TakeStandby(ds); has != (digest == "good") || err != nil {
			t.Errorf("%s: %v, %v", digest, has, err)
		}
	}
	if _, err := os.Stat(s.cfg.Data.Files.Path(7, dataset.Manifest)); !os.IsNotExist(err) {
		t.Errorf("the bad manifest is there: %v", err)
	}
}

// testMark returns a mark at an offset.
func testMark(at int64) ingest.Checkpoint {
	var m ingest.Checkpoint
	m.At, m.Kept = at, []stagein.Try{{Number: 3}}
	return m
}

// TestMarks: the next try of a part resumes from the last mark of an earlier one on the same boot.
func TestMarks(t *testing.T) {
	s, _ := stagerOf(t, 2)
	p := &participant{s: s, plan: &stagein.Plan{Dataset: 7, Name: "set"}, part: 1}
	if err := os.MkdirAll(s.cfg.Data.Files.Dir(7), 0o700); err != nil {
		t.Fatal(err)
	}
	save := func(try uint16) {
		t.Helper()
		p.saveMark(stagein.Part{Try: try})(testMark(42))
		if err := os.WriteFile(p.tryFile(try), []byte("records"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	last := func(try uint16) earlier {
		e := p.lastTry(stagein.Part{Index: 1, Try: try})
		t.Cleanup(e.close)
		return e
	}
	if e := last(1); e.mark != nil || e.kept() != nil {
		t.Errorf("without a mark: %+v", e)
	}
	save(1)
	if e := last(2); e.mark == nil || e.mark.At != 42 || len(e.kept()) != 1 || e.records == nil {
		t.Errorf("the last mark: %+v", e)
	}
	if e := last(1); e.mark != nil {
		t.Errorf("the mark of the same try counts: %+v", e)
	}
	if e := last(2); e.mark != nil {
		t.Errorf("a mark that did not count once counts: %+v", e)
	}
	save(0)
	if e := last(0); e.mark != nil {
		t.Errorf("the first try has a mark: %+v", e)
	}
	if err := os.WriteFile(p.markFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if e := last(3); e.mark != nil {
		t.Errorf("a damaged mark counts: %+v", e)
	}
	if err := writeJSONFile(p.markFile(), savedMark{Boot: "another", Mark: testMark(1)}); err != nil {
		t.Fatal(err)
	}
	if e := last(3); e.mark != nil {
		t.Errorf("a mark from before a reboot counts: %+v", e)
	}
}
