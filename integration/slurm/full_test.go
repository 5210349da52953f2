//go:build slurm

package slurm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// small is a small filesystem on all nodes.
const small = "/mnt/small"

// smallTarget makes the filesystem small, of 8 MiB, of which a file "filler" uses 6.
func smallTarget(t *testing.T, c cluster) {
	t.Helper()
	image := filepath.Join(c.dir, "small.img")
	sh := func(line string) string {
		t.Helper()
		out, err := exec.Command("bash", "-c", "set -e; "+line).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	sh("truncate -s 8M " + image + " && mke2fs -q -F -t ext2 -m 0 " + image)
	loop := sh("losetup -f --show " + image)
	nodes := []string{"ctl", "node1", "node2", "node3", "node4"}
	t.Cleanup(func() {
		for _, node := range nodes {
			c.on(t, node, "umount -l "+small+"; rmdir "+small)
		}
		sh("losetup -d " + loop + "; rm " + image)
	})
	for _, node := range nodes { // one filesystem, mounted on all nodes
		c.on(t, node, "mkdir "+small+" && mount "+loop+" "+small)
	}
	c.on(t, "node1", "chmod 1777 "+small+" && head -c 6M /dev/zero > "+small+"/filler && mkdir -m 777 "+small+"/kept")
}

// fillAndHold writes 4 MiB from two nodes, in files of 1 MiB.
const fillAndHold = `srun --overlap --ntasks-per-node=1 bash -c 'mkdir -p $BIVOUAC_SCRATCH/ckpt &&
	for i in 1 2; do head -c 1M /dev/urandom > $BIVOUAC_SCRATCH/ckpt/$SLURM_PROCID.$i; done'` + "\n" + hold

// beginFull starts a job with fillAndHold, and waits until the job's output reports that the target is full.
func beginFull(t *testing.T, c cluster) (j *job, begins string) {
	t.Helper()
	target := small + "/kept"
	j = c.submit(t, "alice", fillAndHold, "--nodes=2", "--bivouac-stage-out=ckpt:"+target)
	j.holds(t, "0")
	begins = "bivouac: stage-out of ckpt to " + target
	eventually(t, soon, "it is told while the job runs", func() bool {
		return strings.Contains(j.output(t), begins+" fails so far: no space left on device (")
	})
	return j, begins
}

// TestStageOutFullForAWhile: a target that is full when the job ends, and has room soon after, gets all files.
func TestStageOutFullForAWhile(t *testing.T) {
	c := begin(t)
	smallTarget(t, c)
	j, begins := beginFull(t, c)
	j.release(t)
	eventually(t, soon, "the job's end", func() bool { return j.state(t) == "COMPLETING" })
	c.on(t, "node1", "rm "+small+"/filler")
	j.ends(t, "COMPLETED")
	c.nothingLeft(t)
	if out := j.output(t); strings.Contains(out, begins+" failed") || !strings.Contains(out, "free space there") {
		t.Errorf("the output says:\n%s", out)
	}
	got := c.on(t, "node2", "cd "+small+"/kept && stat -c '%n %s' * && ls -A | wc -l")
	if want := "0.1 1048576\n0.2 1048576\n1.1 1048576\n1.2 1048576\n4"; got != want {
		t.Errorf("the target has\n%s\nwant\n%s", got, want)
	}
}

// TestStageOutFull: the epilog waits for a target that stays full as long as it may. Files that fit are complete; the
// others are reported and listed.
func TestStageOutFull(t *testing.T) {
	c := begin(t)
	site := filepath.Join(c.dir, "etc/bivouac/bivouac.yaml")
	was, err := os.ReadFile(site)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(site, was, 0o644); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(site, append(was, "epilog_timeout: 25s\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	smallTarget(t, c)
	j, begins := beginFull(t, c)
	j.release(t)
	j.ends(t, "COMPLETED")
	c.nothingLeft(t)
	j.says(t, begins+" failed: not copied, and lost with the job, ", "no space left on device (", "free space there, or ask for a larger quota",
		"/mnt/pfs/home/alice/bivouac-"+j.id+"-node")
	arrived := strings.Fields(c.on(t, "node1", "cd "+small+"/kept && ls -A"))
	lists, err := filepath.Glob(filepath.Join(c.home("alice"), "bivouac-"+j.id+"-*.not-copied"))
	if err != nil {
		t.Fatal(err)
	}
	listed := 0
	for _, path := range lists {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		listed += strings.Count(string(b), `"ckpt/`)
	}
	if listed == 0 || listed+len(arrived) != 4 {
		t.Errorf("arrived are %q, and %d of 4 files are listed in %q", arrived, listed, lists)
	}
	for _, name := range arrived {
		if n := c.on(t, "node1", "stat -c %s "+small+"/kept/"+name); n != "1048576" {
			t.Errorf("%s has arrived with %s bytes", name, n)
		}
	}
}

// TestStageOutToldToSalloc: salloc has no output file: failures are reported in a file in the submit directory.
func TestStageOutToldToSalloc(t *testing.T) {
	c := begin(t)
	c.as(t, "alice", "mkdir -p closed")
	script := `echo $SLURM_JOB_ID; chmod 555 closed; srun --ntasks-per-node=1 bash -c 'mkdir -p $BIVOUAC_SCRATCH/ckpt && echo x > $BIVOUAC_SCRATCH/ckpt/$SLURM_PROCID' >&2
until [ -s bivouac-$SLURM_JOB_ID.out ]; do sleep 0.2; done`
	if err := os.WriteFile(filepath.Join(c.home("alice"), "interactive"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	target := far("alice", "closed")
	id := c.as(t, "alice", "timeout 150 salloc -N2 --bivouac-stage-out=ckpt:"+target+" bash interactive 2>/dev/null")
	c.nothingLeft(t)
	b, err := os.ReadFile(filepath.Join(c.home("alice"), "bivouac-"+id+".out"))
	begins := "bivouac: stage-out of ckpt to " + target
	for _, want := range []string{begins + " fails so far: permission denied (", begins + " failed: not copied, and lost with the job, 2 files of 4 B: permission denied (2, such as "} {
		if err != nil || strings.Count(string(b), want) != 1 {
			t.Errorf("the file says %q, %v, want once %q", b, err, want)
		}
	}
}
