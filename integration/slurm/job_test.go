//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// soon is enough time for a job to start or to end on a busy machine.
const soon = 90 * time.Second

// job is a submitted job.
type job struct {
	c    cluster
	user string
	id   string
}

// hold is a batch script's line that waits for release.
const hold = `touch started.$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}; until [ -e go.$SLURM_JOB_ID ]; do sleep 0.1; done` + "\n"

// touchAll reads from the staged tree on every node of the job and writes a file in scratch from each.
const touchAll = `srun --overlap --ntasks-per-node=1 bash -c '
	read -r _ who < $BIVOUAC_DATA/tree/tree/hello && [ "$who" = "$USER" ] || exit 3
	[ $(stat -c %s $BIVOUAC_DATA/tree/tree/deep/er/file) = 1048576 ] || exit 4
	mkdir -p $BIVOUAC_SCRATCH/ckpt && hostname > $BIVOUAC_SCRATCH/ckpt/rank$SLURM_PROCID' || exit 1
srun --overlap --ntasks-per-node=1 bash -c '[ $(ls $BIVOUAC_SCRATCH/ckpt | wc -l) = $SLURM_NNODES ]' || exit 2
`

// submit writes a batch script and submits it with these options.
func (c cluster) submit(t *testing.T, user, body string, options ...string) *job {
	t.Helper()
	out, err := c.sbatch(t, user, body, options...)
	if err != nil {
		t.Fatalf("sbatch %v: %v\n%s", options, err, out)
	}
	return &job{c: c, user: user, id: strings.TrimSpace(out)}
}

// sbatch is like submit, but may be refused.
func (c cluster) sbatch(t *testing.T, user, body string, options ...string) (string, error) {
	t.Helper()
	name := strings.ReplaceAll(t.Name(), "/", "-") + ".sh"
	if err := os.WriteFile(filepath.Join(c.home(user), name), []byte("#!/bin/bash\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"as", user, "ctl", "sbatch", "--parsable", "--output=%j.out", "--open-mode=append"}, options...)
	return c.try(append(args, name)...)
}

var jobState = regexp.MustCompile(` JobState=([A-Z_]+)`)

// state returns scontrol's description of the job.
func (j *job) state(t *testing.T) string {
	t.Helper()
	m := jobState.FindStringSubmatch(j.c.do(t, "exec", "ctl", "scontrol", "-o", "show", "job", j.id))
	if m == nil {
		t.Fatalf("job %s has no state", j.id)
	}
	return m[1]
}

// ends waits until the job has ended, in one of these states.
func (j *job) ends(t *testing.T, want ...string) {
	t.Helper()
	var s string
	eventually(t, 3*soon, "the end of job "+j.id, func() bool {
		s = j.state(t)
		return !slices.Contains([]string{"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"}, s)
	})
	if !slices.Contains(want, s) {
		t.Fatalf("job %s ended as %s, want %v; its output:\n%s", j.id, s, want, j.output(t))
	}
}

// output returns the job's output.
func (j *job) output(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(j.c.home(j.user), j.id+".out"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

// printed returns the job's output without the lines about stage-in.
func (j *job) printed(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(j.output(t)) {
		if !strings.HasPrefix(line, "bivouac: ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// says checks the job's output.
func (j *job) says(t *testing.T, want ...string) {
	t.Helper()
	out := j.output(t)
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("the output of job %s lacks %q:\n%s", j.id, w, out)
		}
	}
}

// holds waits until the batch script has reached its hold line, in its n-th run.
func (j *job) holds(t *testing.T, n string) {
	t.Helper()
	p := filepath.Join(j.c.home(j.user), "started."+j.id+"."+n)
	eventually(t, soon, "job "+j.id+" runs", func() bool {
		_, err := os.Stat(p)
		return err == nil
	})
}

// release lets the batch script continue.
func (j *job) release(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(j.c.home(j.user), "go."+j.id), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// daemon returns the pid, on the node, of the job's daemon there.
func (j *job) daemon(t *testing.T, node string) string {
	t.Helper()
	pid, _, _ := strings.Cut(j.c.on(t, node, "cat /run/bivouac/"+j.id+"/daemon.pid"), " ")
	return pid
}

// bivouac returns the options for a job on n nodes with the user's tree.
func bivouac(user, n string, more ...string) []string {
	return append([]string{"--nodes=" + n, "--bivouac-stage-in=" + far(user, "tree.tar")}, more...)
}

// TestTopology: each node knows its leaf switch from Slurm's topology.conf, and status shows it.
func TestTopology(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", "bivouac status\n", "-N4", "--bivouac")
	j.ends(t, "COMPLETED")
	for node, leaf := range map[string]string{"node1": "leaf1", "node2": "leaf1", "node3": "leaf2", "node4": "leaf2"} {
		if out := j.output(t); !regexp.MustCompile(`(?m)^` + node + ` .* ` + leaf + ` `).MatchString(out) {
			t.Errorf("%s is not behind %s:\n%s", node, leaf, out)
		}
	}
}
