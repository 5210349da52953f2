package show

import (
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

var t0 = time.Unix(1000, 0)

func at(s float64) metadata.Time {
	return metadata.TimeOf(t0.Add(time.Duration(s * float64(time.Second))))
}

func job() daemon.Status {
	return daemon.Status{
		Job: "7", Mount: "/mnt/bivouac/7", Ready: true, Nodes: make([]daemon.NodeStatus, 2),
		Phases: daemon.PhaseTimes{Created: at(0), Mounted: at(0.25), Up: at(0.5)},
		Datasets: []daemon.DatasetStatus{{
			Dataset: cluster.Dataset{Name: "set", Source: "/s.tar", Phase: cluster.Sealed, Files: 3, Bytes: 3000,
				SourceSize: 4000, SourceBytes: 4000, Started: at(1), Sealed: at(3)},
			Ready:   true,
			PerNode: []daemon.NodeShare{{Host: "a", Files: 2, Bytes: 2000}, {Host: "b", Files: 1, Bytes: 1000}},
			Striped: &daemon.NodeShare{Host: "all nodes", Files: 1, Bytes: 5 << 20},
		}},
	}
}

func TestReport(t *testing.T) {
	var b strings.Builder
	if err := Report(&b, job()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"allocation to mount      0.25 s", "source bytes read / source bytes = 1.00",
		"ready after              2.00 s", "2 files, 2.0 KiB", "all nodes                1 files, 5.0 MiB, in stripes", "imbalance (most / mean)  1.33"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report has no %q:\n%s", want, b.String())
		}
	}
}

func TestStatus(t *testing.T) {
	s := job()
	s.Datasets[0].Phase, s.Datasets[0].Error = cluster.Failed, "no such file"
	var b strings.Builder
	if err := Status(&b, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"job 7  ready", "/mnt/bivouac/7", "failed", "no such file"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the status has no %q:\n%s", want, b.String())
		}
	}
}

// TestProgress: in a log a line now and then, on a terminal one that is rewritten.
func TestProgress(t *testing.T) {
	staging := daemon.DatasetStatus{Dataset: cluster.Dataset{Name: "set", Phase: cluster.Staging, Started: at(0)},
		Total: 1000, Progress: &stagein.Progress{SourceBytes: 500, Files: 5, Bytes: 450, Shares: 3, Most: 180}}
	done := job().Datasets[0]
	for _, terminal := range []bool{false, true} {
		var b strings.Builder
		p := Progress{W: &b, Terminal: terminal}
		for i := range 4 {
			p.Show(staging, t0.Add(time.Duration(i+1)*time.Second))
		}
		p.Show(done, t0.Add(9*time.Second))
		p.Show(done, t0.Add(10*time.Second))
		s := b.String()
		lines, shown := strings.Count(s, "\n"), strings.Count(s, " 50%")
		if !terminal && (lines != 2 || shown != 1) || terminal && (lines != 1 || shown != 4) {
			t.Errorf("terminal %v: %d lines, staging shown %d times:\n%q", terminal, lines, shown, s)
		}
		if strings.Count(s, "imbalance 1.20") != shown {
			t.Errorf("terminal %v: no imbalance: %q", terminal, s)
		}
		if !strings.Contains(s, "3 files, 2.9 KiB, ready in 2.00 s") {
			t.Errorf("terminal %v: the end is not shown: %q", terminal, s)
		}
	}
}

// TestIncomplete: the end of a stage-in says which part is on no node.
func TestIncomplete(t *testing.T) {
	ds := job().Datasets[0]
	ds.InSource, ds.Missing = &daemon.NodeShare{Files: 2, Bytes: 2000}, 1
	var b strings.Builder
	Incomplete(&b, "bivouac: ", ds)
	for _, want := range []string{"bivouac: set: 2 of 3 files (2.0 KiB of 2.9 KiB) have no room", "bivouac: set: 1 of 3 files could not be fetched"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the end says no %q:\n%s", want, &b)
		}
	}
}

func TestCheck(t *testing.T) {
	var b strings.Builder
	r := home.CheckResult{Directories: 2, Files: 3, Names: 4, Orphans: 1, Objects: 5, Wrong: 3, Problems: []string{"one", "two"}}
	if err := Check(&b, r); err != nil {
		t.Fatal(err)
	}
	want := "one\ntwo\nand 1 more\n2 directories, 3 files, 4 names, 1 orphans, 5 objects: 3 problems\n"
	if b.String() != want {
		t.Errorf("Check = %q, want %q", b.String(), want)
	}
}

// TestStatusOfLostNodes: status says what is lost with a node, and what of a dataset the others have no room for.
func TestStatusOfLostNodes(t *testing.T) {
	s := job()
	s.Nodes = []daemon.NodeStatus{{ID: 0, Host: "a", Lost: true}, {ID: 1, Host: "b", Lost: true}, {ID: 2, Host: "c", State: cluster.Down}}
	s.Datasets[0].Overflow = []leader.Overflow{{Host: "d", Files: 3, Bytes: 3 << 10}, {Host: "e", Missing: 2, Error: "no such file"}}
	var b strings.Builder
	if err := Status(&b, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a is lost, and with it the root of scratch", "b is lost: scratch files", "rm -rf removes them",
		"set: d has no room for 3 files, 3.0 KiB,", "set: e could not fetch 2 files that it owns: no such file: "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the status has no %q:\n%s", want, b.String())
		}
	}
	s.Silence, s.Host = 7, "a"
	s.Nodes = []daemon.NodeStatus{{Host: "a", Space: &datapath.Space{Capacity: 10 << 30, Used: 1 << 30, Free: 9 << 30}},
		{Host: "b", Space: &datapath.Space{Capacity: 10 << 30, Used: 10 << 30}}}
	if err := Status(&b, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"no leader has answered a for 7 s: the control group has no quorum", "1.0 GiB   9.0 GiB", "b is full: "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the status has no %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "a is full") || strings.Contains(b.String(), "c is lost") {
		t.Errorf("a node is lost that never was there:\n%s", b.String())
	}
}
