package show

import (
	"io"
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
		"ready after              2.00 s, 2.0 KiB/s read", "2 files, 2.0 KiB", "all nodes                1 file, 5.0 MiB, in stripes", "imbalance (most / mean)  1.33"} {
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
	for _, want := range []string{"job 7  ready  2 nodes", "/mnt/bivouac/7", "set      failed", "no such file"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the status has no %q:\n%s", want, b.String())
		}
	}
}

// TestNodes: status and top have a line for each node, status with totals and top with rates.
func TestNodes(t *testing.T) {
	s := job()
	s.Nodes = []daemon.NodeStatus{
		{ID: 0, Host: "a", State: cluster.Up, Load: &leader.Load{Space: datapath.Space{Used: 1 << 20, Free: 3 << 20},
			Traffic: daemon.Traffic{ReadLocal: 1 << 30, ReadRemote: 2 << 30, ReadSource: 3 << 30, WriteLocal: 4 << 30, WriteRemote: 1 << 30},
			Rates:   daemon.Rates{ReadLocal: 1 << 10, ReadRemote: 2 << 10, ReadSource: 3 << 10, WriteLocal: 4 << 10, WriteRemote: 1 << 10}}},
		{ID: 1, Host: "b", State: cluster.Down, Lost: true},
	}
	for name, c := range map[string]struct {
		write func(io.Writer, daemon.Status) error
		want  string
	}{
		"status": {Status, "a     ready, leader  1.0 MiB  3.0 MiB  1.0 GiB     2.0 GiB  3.0 GiB  5.0 GiB\n"},
		"top":    {Top, "a     ready, leader  1.0 MiB  3.0 MiB  1.0 KiB/s   2.0 KiB/s  3.0 KiB/s  5.0 KiB/s\n"},
	} {
		var b strings.Builder
		if err := c.write(&b, s); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{c.want, "b     lost           -", "set      ready  100%", "b is lost"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s has no %q:\n%s", name, want, &b)
			}
		}
	}
}

// TestNamesOfNodes: with two copies, status shows which node has the names of each node.
func TestNamesOfNodes(t *testing.T) {
	s := job()
	for i, names := range []cluster.Names{{State: cluster.NamesCopied, Node: "b"}, {State: cluster.NamesCopying, Node: "c"}, {State: cluster.NamesServed, Node: "d"},
		{State: cluster.NamesServed, Node: "a", Copy: "b"}, {State: cluster.NamesServed, Node: "a", Copying: "b"}, {State: cluster.NamesLost, Node: "c"}, {State: cluster.NamesLost}, {State: cluster.NamesSingle}} {
		n := daemon.NodeStatus{ID: metadata.NodeID(i), Host: string(rune('a' + i)), State: cluster.Up, Names: &names}
		if names.State == cluster.NamesServed || names.State == cluster.NamesLost {
			n.State, n.Lost = cluster.Down, true
		}
		s.Nodes = append(s.Nodes[:i], n)
	}
	var b strings.Builder
	if err := Status(&b, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NODE  STATE          NAMES                      USED", "a     ready, leader  copied to b                -", "b     ready          copying to c               -",
		"c     lost           served by d, one copy      -", "f     lost           lost with c                -", "g     lost           lost                       -", "h     ready          one copy                   -",
		"d     lost           served by a, copied to b   -", "e     lost           served by a, copying to b  -",
		"c is lost: d has taken over the names", "f is lost: scratch files with data only there, and directories kept there with their contents, fail with EIO until c is back",
		"g is lost: scratch files with data only there, and directories kept there with their contents, fail with EIO until it is back"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the status has no %q:\n%s", want, b.String())
		}
	}
}

// TestSwitches: the node table shows the switches if any is known.
func TestSwitches(t *testing.T) {
	s := job()
	s.Nodes = []daemon.NodeStatus{{Host: "a", State: cluster.Up, Switch: "leaf1"}, {ID: 1, Host: "b", State: cluster.Up}}
	var b strings.Builder
	if err := Status(&b, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NODE  STATE          SWITCH  USED", "a     ready, leader  leaf1   -", "b     ready          -       -"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the status has no %q:\n%s", want, b.String())
		}
	}
}

// moving returns a dataset with done of 1000 bytes staged.
func moving(id metadata.DatasetID, name string, done int64) daemon.DatasetStatus {
	return daemon.DatasetStatus{Dataset: cluster.Dataset{ID: id, Name: name, Phase: cluster.Staging, Started: at(0)},
		Total: 1000, Progress: &stagein.Progress{SourceBytes: done, Files: done / 100, Bytes: done * 9 / 10, Shares: 3, Most: done * 36 / 100}}
}

// TestProgress: a log gets a line from time to time, a terminal a bar for each dataset, also for an earlier dataset of
// the same name that failed.
func TestProgress(t *testing.T) {
	failed := moving(1, "set", 0)
	failed.Phase = cluster.Failed
	done := job().Datasets[0]
	done.ID = 2
	for _, terminal := range []bool{false, true} {
		var b strings.Builder
		p := Progress{W: &b, Terminal: terminal, Path: func(ds *daemon.DatasetStatus) string { return ds.Name }}
		for i := range 4 {
			p.Show([]daemon.DatasetStatus{failed, moving(2, "set", 500), moving(3, "other", 500)}, t0.Add(time.Duration(i+1)*time.Second))
		}
		for i := range 3 {
			p.Show([]daemon.DatasetStatus{failed, done, moving(3, "other", 500)}, t0.Add(time.Duration(9+i)*time.Second))
		}
		p.Close()
		s := b.String()
		lines, set, other := strings.Count(s, "\n"), strings.Count(s, "set"), strings.Count(s, "other")
		if !terminal && (lines != 4 || set != 3 || other != 2) || terminal && (set < 4 || other < 6) {
			t.Errorf("terminal %v: %d lines, set %d times, other %d times:\n%s", terminal, lines, set, other, s)
		}
		for _, want := range []string{"imbalance 1.20", " 50%", "5 files", "500 B of 1000 B", "3 files, 2.9 KiB, ready in 2.00 s: $BIVOUAC_DATA/set\n"} {
			if !strings.Contains(s, want) {
				t.Errorf("terminal %v: no %q in:\n%s", terminal, want, s)
			}
		}
	}
}

// TestPace: the time left is never negative, and not shown while it would be a guess.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		done []int64 // by second
		want string
	}{
		{[]int64{0}, "ETA ?"}, {[]int64{0, 0, 0}, "ETA ?"}, {[]int64{500, 500}, "ETA ?"}, {[]int64{0, 100}, "100 B/s  ETA 9s"},
		{[]int64{0, 100, 200, 300}, "100 B/s  ETA 7s"}, {[]int64{0, 500, 1200}, "finishing"}, {[]int64{900, 999}, "99 B/s  ETA 1s"},
		{[]int64{0, 800, 10}, "ETA ?"}, {[]int64{0, 600, 600, 600, 600, 600}, "402 B/s  ETA 1s"},
	} {
		var p pace
		ds := daemon.DatasetStatus{}
		for i, n := range c.done {
			ds = moving(1, "set", n)
			p.observe(&ds, t0.Add(time.Duration(i)*time.Second))
		}
		if got := p.left(1000 - c.done[len(c.done)-1]); got != c.want {
			t.Errorf("after %v: %q, want %q", c.done, got, c.want)
		}
	}
}

// TestCurrent: a failed dataset is shown until its name is reused or it is removed.
func TestCurrent(t *testing.T) {
	s := job()
	s.Datasets = nil
	for i, p := range []cluster.Phase{cluster.Failed, cluster.Sealed, cluster.Failed, cluster.Removed} {
		s.Datasets = append(s.Datasets, daemon.DatasetStatus{Dataset: cluster.Dataset{
			ID: metadata.DatasetID(i + 1), Name: []string{"a", "a", "b", "c"}[i], Phase: p}})
		if p.Ended() {
			s.Datasets[i].Error = "no such file"
		}
	}
	for _, write := range []func(io.Writer, daemon.Status) error{Status, Report} {
		var b strings.Builder
		if err := write(&b, s); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); strings.Count(got, "no such file") != 1 || !strings.Contains(got, "b: no such file") && !strings.Contains(got, "dataset b") {
			t.Errorf("want the failure of b alone:\n%s", got)
		}
	}
}

// TestIncomplete: the final line of a stage-in says which part is on no node.
func TestIncomplete(t *testing.T) {
	ds := job().Datasets[0]
	ds.InSource, ds.Missing = &daemon.NodeShare{Files: 2, Bytes: 2000}, 1
	var b strings.Builder
	Incomplete(&b, "bivouac: ", ds)
	for _, want := range []string{"bivouac: set: 2 of 3 files (2.0 KiB of 2.9 KiB) do not fit", "bivouac: set: 1 of 3 files could not be fetched"} {
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
	want := "one\ntwo\nand 1 more\n2 directories, 3 files, 4 names, 1 orphan, 5 objects: 3 problems\n"
	if b.String() != want {
		t.Errorf("Check = %q, want %q", b.String(), want)
	}
}

// TestStatusOfLostNodes: status shows the data lost with a node, and which files of a dataset do not fit on the others.
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
	s.OneCopy = &daemon.OneCopy{Files: 2, Bytes: 3 << 20, Waiting: 1, Nodes: 1}
	s.Nodes = []daemon.NodeStatus{{Host: "a", Load: &leader.Load{Space: datapath.Space{Capacity: 10 << 30, Used: 1 << 30, Free: 9 << 30}}},
		{Host: "b", Load: &leader.Load{Space: datapath.Space{Capacity: 10 << 30, Used: 10 << 30}}}}
	if err := Status(&b, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"no leader has answered a for 7 s: the control group has no quorum", "1.0 GiB   9.0 GiB", "b is full: ",
		"one copy: 3.0 MiB of 2 file parts with copies=2 lost a copy with a node and are copied again; 1 node still copying; 1 part more wait for"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the status has no %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "a is full") || strings.Contains(b.String(), "c is lost") {
		t.Errorf("a node is lost that never was there:\n%s", b.String())
	}
}
