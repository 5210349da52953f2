package pitch

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/deploy/mounts"
)

// node is a compute node in a directory, with one job of the user nobody.
type node struct {
	t    *testing.T
	site Site
	vars map[string]string
	said bytes.Buffer
	// syslog is the socket that receives events.
	syslog string
}

const nobody = 65534

// newNode creates a node with one host, and checks after the test that nothing is left.
func newNode(t *testing.T, behaviour string) *node {
	t.Helper()
	needFuse(t)
	dir, err := os.MkdirTemp("", "pitch") // a short path, since it contains sockets
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := DefaultSite()
	s.Store = []string{filepath.Join(dir, "nvme0"), filepath.Join(dir, "nvme1")}
	s.Run, s.Mount, s.Log = filepath.Join(dir, "run"), filepath.Join(dir, "mnt"), filepath.Join(dir, "log")
	s.StartTimeout, s.FailureTimeout = Seconds(20*time.Second), Seconds(2*time.Second)
	s.Port = 21000 + 100*(os.Getpid()%300)
	s.Ports = 64
	for _, d := range s.Store {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n := &node{t: t, site: s, syslog: filepath.Join(dir, "no syslog"), vars: map[string]string{
		"SLURM_JOB_ID": "17", "SLURM_JOB_UID": "65534", "SLURM_JOB_GID": "65534",
		"SLURM_JOB_NODELIST": "node1", "SLURMD_NODENAME": "node1",
	}}
	n.ask(map[string]string{"seed": behaviour})
	t.Cleanup(func() {
		n.site.EpilogTimeout = Seconds(time.Second)
		if got := n.epilog(); got != exitOK {
			t.Errorf("the last epilog = %d, said %q", got, n.said.String())
		}
		n.clean()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return n
}

// ask sets the spec of the job.
func (n *node) ask(opts map[string]string) {
	n.t.Helper()
	w, err := (&Spec{V: SpecVersion, Opts: opts}).Encode()
	if err != nil {
		n.t.Fatal(err)
	}
	n.vars[specVar] = w
}

func (n *node) env() Env {
	return Env{Getenv: func(k string) string { return n.vars[k] }, Stderr: &n.said, Syslog: n.syslog}
}

func (n *node) prolog() int { return Prolog(n.t.Context(), n.env(), n.site) }
func (n *node) epilog() int { return Epilog(ctxOf(n.t), n.env(), n.site) }
func (n *node) place() place {
	return place{n.site, n.vars["SLURM_JOB_ID"]}
}

// pitched runs a prolog that must succeed.
func (n *node) pitched() {
	n.t.Helper()
	if got := n.prolog(); got != exitOK {
		n.t.Fatalf("Prolog = %d, said %q", got, n.said.String())
	}
	n.wantState(State{Ready, n.place().mount()})
}

func (n *node) wantState(want State) {
	n.t.Helper()
	got, err := ReadState(n.site, n.place().job)
	if err != nil || got != want {
		log, _ := os.ReadFile(n.place().log())
		n.t.Fatalf("state = %q, %v, want %q; said %q; log:\n%s", got, err, want, n.said.String(), log)
	}
}

// failed returns the reason in the state file.
func (n *node) failed() string {
	n.t.Helper()
	s, err := ReadState(n.site, n.place().job)
	if err != nil || s.Phase != Failed {
		n.t.Fatalf("state = %q, %v, want failed", s, err)
	}
	return s.Detail
}

func (n *node) seen() sighting {
	n.t.Helper()
	var s sighting
	b, err := os.ReadFile(filepath.Join(n.place().ctl(), "seen"))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// starts returns how many daemons the job has had.
func (n *node) starts() int {
	b, _ := os.ReadFile(filepath.Join(n.place().ctl(), "starts"))
	return len(b)
}

func (n *node) keeper() process { return readProcess(n.place().keeperPid()) }
func (n *node) daemon() process { return readProcess(n.place().daemonPid()) }

// clean checks that no job has left anything except a log.
func (n *node) clean() {
	n.t.Helper()
	if jobs := jobsOn(n.site); len(jobs) > 0 {
		n.t.Errorf("jobs %v have left something", jobs)
	}
	table, err := mounts.Table()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, m := range table {
		if strings.HasPrefix(m.Path, n.site.Mount+"/") {
			n.t.Errorf("%s is still mounted", m.Path)
		}
	}
}
