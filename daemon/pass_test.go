package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// passDaemon is what of a daemon keeps a pass, with one that it has kept.
func passDaemon(t testing.TB) (*Daemon, []byte) {
	t.Helper()
	hosts := []string{"n0", "n1", "n2"}
	d := &Daemon{job: &job.File{Hosts: hosts, Self: 1, Dirs: job.Dirs{Store: []string{t.TempDir()}}}, log: logrus.NewEntry(logrus.New())}
	d.log.Logger.SetOutput(t.Output())
	in := d.newIntake(cluster.Dataset{ID: 7, Turn: 3, Name: "set", Coordinator: 1}, stagein.Request{})
	in.plan = &stagein.Plan{
		Dataset: 7, Map: cluster.NewMap(1, hosts), Parts: []stagein.Part{{Node: 0}, {Index: 1, Node: 1}},
		Origins: stagein.Origins{Since: 5}, Skips: []stagein.Skip{{Path: "x", Error: "y"}},
	}
	in.initParts(2)
	in.parts[0] = partState{brought: true, progress: stagein.Progress{SourceBytes: 11}, pieces: []stagein.Piece{{Size: 3}}}
	in.parts[1] = partState{vain: 13, lost: []metadata.NodeID{2}, progress: stagein.Progress{SourceBytes: 17}}
	if err := in.begin(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(in.dir(), recordsFile(0)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := in.save(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(d.stageDir(7), passFile))
	if err != nil {
		t.Fatal(err)
	}
	return d, b
}

// TestPassKept: what is kept of a pass is all that it takes to go on; what was brought
// to one node, or before its machine was booted, is not on another.
func TestPassKept(t *testing.T) {
	d, b := passDaemon(t)
	for _, c := range []struct {
		name    string
		change  func(p *pass)
		brought bool
	}{
		{"by the same node", func(*pass) {}, true},
		{"by another", func(p *pass) { p.Leader = 2 }, false},
		{"before a boot", func(p *pass) { p.Boot = "another" }, false},
	} {
		p, err := d.parsePass(b, 7)
		if err != nil {
			t.Fatal(err)
		}
		c.change(p)
		in := d.newIntake(cluster.Dataset{ID: 7, Turn: 4, Reading: true}, stagein.Request{})
		in.takeUp(p)
		if !in.taken || in.plan.Origins.Since != 5 || len(in.plan.Skips) != 1 || in.parts[1].vain != 13 || len(in.parts[1].lost) != 1 {
			t.Errorf("%s: %+v of %+v", c.name, in.parts, in.plan)
		}
		if x := in.parts[0]; x.brought != c.brought || c.brought && (x.progress.SourceBytes != 11 || len(x.pieces) != 1) {
			t.Errorf("%s: brought: %+v", c.name, x)
		}
	}
}

func FuzzPass(f *testing.F) {
	d, b := passDaemon(f)
	f.Add(b)
	for _, bad := range []func(p *pass){
		func(p *pass) { p.Plan = nil },
		func(p *pass) { p.Parts = p.Parts[:1] },
		func(p *pass) { p.Plan.Parts[1].Node = 9 },
		func(p *pass) { p.Plan.Parts[1].Index = 0 },
		func(p *pass) { p.Plan.Map = cluster.NewMap(1, []string{"n0"}) },
		func(p *pass) { p.Plan.Dataset = 8 },
	} {
		p, err := d.parsePass(b, 7)
		if err != nil {
			f.Fatal(err)
		}
		bad(p)
		c, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		if _, err := d.parsePass(c, 7); err == nil {
			f.Errorf("%s is taken", c)
		}
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := d.parsePass(b, 7)
		if err != nil {
			return
		}
		in := d.newIntake(cluster.Dataset{ID: 7, Reading: true}, stagein.Request{})
		in.takeUp(p)
		for i := range in.parts {
			in.again(i, 0)
		}
	})
}

// TestNewestPass: of a thousand nodes so many are asked at a time that slow ones do not
// add up, and the newest of what they have counts; one that cannot be asked may have it.
func TestNewestPass(t *testing.T) {
	var nodes []metadata.NodeID
	for i := range 1000 {
		nodes = append(nodes, metadata.NodeID(i))
	}
	var asked atomic.Int32
	many := make(chan struct{})
	slow := func(ctx context.Context, id metadata.NodeID) (*pass, error) {
		if asked.Add(1) == 16 {
			close(many)
		}
		select {
		case <-many: // no answer before so many are asked
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		switch id {
		case 17, 612:
			return &pass{Turn: 2, Version: int(id)}, nil
		case 999:
			return &pass{Turn: 1, Version: 5000}, nil
		}
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	best, from, err := newestPass(ctx, nodes, slow)
	if err != nil || from != 612 || best == nil || best.Version != 612 || asked.Load() != 1000 {
		t.Errorf("%+v of node %d, %v; %d were asked", best, from, err, asked.Load())
	}
	_, _, err = newestPass(ctx, nodes, func(ctx context.Context, id metadata.NodeID) (*pass, error) {
		if id == 700 {
			return nil, syscall.EHOSTDOWN
		}
		return nil, nil
	})
	if !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("with a node that cannot be asked: %v", err)
	}
}
