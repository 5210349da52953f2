package local

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// python is Debian's, which has torch if "make python-test" has installed it.
const python = "/usr/bin/python3"

// programs is the directory of the Python package's test programs for a job.
const programs = "../../fsclient/python/tests/job/"

// needTorch skips the test without PyTorch.
func needTorch(t *testing.T) {
	t.Helper()
	if out, err := exec.Command(python, "-B", "-c", "import torch, torchvision, h5py").CombinedOutput(); err != nil {
		t.Skipf("needs PyTorch: make python-test installs it: %s", out)
	}
}

// rank returns the command for a Python program on node i.
func (c *camp) rank(i int, args ...string) *exec.Cmd {
	cmd := exec.Command(python, slices.Concat([]string{"-B"}, args)...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "SLURM_") }),
		"BIVOUAC="+c.node(fmt.Sprint(i)), "BIVOUAC_DATA="+c.node(fmt.Sprint(i), "data"),
		"BIVOUAC_SCRATCH="+c.node(fmt.Sprint(i), "scratch"), "OMP_NUM_THREADS=1")
	return cmd
}

// freePort returns a loopback port that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return port
}

// torchrun runs one agent with one rank on each node. Debian's torchrun fails with Python 3.11 unless both standard
// streams of the ranks are redirected: to files, and standard error is also shown.
func (c *camp) torchrun(nodes int, args ...string) {
	c.t.Helper()
	port := freePort(c.t)
	errs := make([]error, nodes)
	var wg sync.WaitGroup
	for i := range nodes {
		agent := []string{"-m", "torch.distributed.run", "--nnodes", fmt.Sprint(nodes), "--node_rank", fmt.Sprint(i),
			"--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", port,
			"--redirects", "1", "--tee", "2", "--log_dir", c.path("torchrun", fmt.Sprint(i))}
		cmd := c.rank(i, append(agent, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the rank ends with its agent
		var log strings.Builder
		cmd.Stdout, cmd.Stderr = &log, &log
		if err := cmd.Start(); err != nil {
			c.t.Fatal(err)
		}
		watch := time.AfterFunc(2*patience, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		defer watch.Stop()
		wg.Go(func() {
			if err := cmd.Wait(); err != nil {
				errs[i] = fmt.Errorf("%w:\n%s", err, log.String())
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			c.t.Errorf("node %d: %v", i, err)
		}
	}
}

// trained is the output of training.py.
type trained struct {
	Copy, Unmodified, Bivouac, Locality []float64
	Local, Samples, Shards              int
	Plan                                string
	Staged, Refused                     []string
	ShardsDiffer                        bool `json:"shards differ"`
	TableDiffers                        bool `json:"table differs"`
}

// TestPython trains under torchrun on four nodes with the samplers of the Python package: the losses equal those of
// torch's sampler over a local copy. Then a daemon is killed under a sampler.
func TestPython(t *testing.T) {
	needTorch(t)
	c := pitch(t, "4")
	if out, err := c.rank(0, programs+"data.py", c.path("src")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.stageIn(c.path("src", "images"))
	c.stageIn(c.path("src", "shards") + "/shard-*.tar:shards,unpack=no")
	c.stageIn(c.path("src", "table"))

	var r trained
	c.torchrun(4, programs+"training.py", c.path("src"), c.path("result"))
	if out, err := os.ReadFile(c.path("result")); err != nil || json.Unmarshal(out, &r) != nil {
		t.Fatalf("rank 0 has found %q (%v)", out, err)
	}
	if len(r.Copy) != 3 || r.Copy[2] >= r.Copy[0] {
		t.Errorf("losses over a local copy: %v, want three that fall", r.Copy)
	}
	if !slices.Equal(r.Unmodified, r.Copy) || !slices.Equal(r.Bivouac, r.Copy) {
		t.Errorf("losses: %v with torch's sampler, %v with Bivouac's, want %v", r.Unmodified, r.Bivouac, r.Copy)
	}
	for i, l := range r.Locality {
		if d := l - r.Copy[i]; d > 1e-5 || d < -1e-5 {
			t.Errorf("losses by locality: %v, want %v up to rounding", r.Locality, r.Copy)
		}
	}
	if r.Samples != 160 || 4*r.Local < 3*r.Samples {
		t.Errorf("by locality, %d of %d samples were on the rank's own node, want most of 160", r.Local, r.Samples)
	}
	if want := "list of 157 files below train, 160 reads"; r.Plan != want {
		t.Errorf("the plan is a %s, want %s", r.Plan, want)
	}
	if !slices.Equal(r.Staged, []string{"table.h5"}) {
		t.Errorf("staged by all ranks: %q, want table.h5", r.Staged)
	}
	if r.Shards != 48 || r.ShardsDiffer || r.TableDiffers {
		t.Errorf("%d samples in shards, differ: %v; table differs: %v", r.Shards, r.ShardsDiffer, r.TableDiffers)
	}
	if len(r.Refused) > 0 {
		t.Errorf("the daemon refused plans, positions or measurements: %q", r.Refused)
	}
	if out := c.ok("report", "--dir", c.dir); !strings.Contains(out, "FIRST BATCH") {
		t.Errorf("the report is %q, want the ranks' measurements in it", out)
	}
	c.samplerSurvives()
}

// samplerSurvives kills the daemon of node 3 while samplers run.
func (c *camp) samplerSurvives() {
	c.t.Helper()
	cmd := c.rank(3, programs+"survivor.py")
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	watch := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer watch.Stop()
	lines := bufio.NewScanner(out)
	if lines.Scan(); lines.Text() != "ready" {
		c.t.Errorf("the sampler says %q, want ready", lines.Text())
	}
	pid := c.state().Nodes[3].PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		c.t.Error(err)
	}
	_, _ = fmt.Fprintln(in)
	var r struct {
		Same           bool
		Calm, Warnings []string
	}
	if lines.Scan(); json.Unmarshal(lines.Bytes(), &r) != nil || !r.Same {
		c.t.Errorf("after the daemon was killed: %q, want the samples of torch's sampler", lines.Text())
	}
	if len(r.Calm) > 0 || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "training goes on") {
		c.t.Errorf("warnings before the daemon was killed: %q, after: %q, want one that says that training goes on", r.Calm, r.Warnings)
	}
	if err := cmd.Wait(); err != nil {
		c.t.Errorf("%v: %s", err, log.String())
	}
}
