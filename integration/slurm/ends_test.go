//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"testing"
)

// However a job ends, nothing of its bivouac stays.

func TestNormalEnd(t *testing.T) {
	c := begin(t)
	kept := far("alice", "kept")
	j := c.submit(t, "alice", touchAll, bivouac("alice", "4", "--bivouac-stage-out=ckpt:"+kept)...)
	j.ends(t, "COMPLETED")
	c.nothingLeft(t)
	for _, r := range []string{"rank0", "rank1", "rank2", "rank3"} {
		if _, err := os.Stat(filepath.Join(c.home("alice"), "kept", r)); err != nil {
			t.Errorf("stage-out: %v", err)
		}
	}
}

func TestDirectorySource(t *testing.T) {
	c := begin(t)
	c.as(t, "alice", "mkdir -p above && cp -a tree above")
	j := c.submit(t, "alice", touchAll, "--nodes=3", "--bivouac-stage-in="+far("alice", "above")+":tree", "--bivouac-opts=wait=all")
	j.ends(t, "COMPLETED")
}

func TestBare(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", `srun bash -c 'echo $SLURM_PROCID > $BIVOUAC_SCRATCH/$SLURM_PROCID' && ls $BIVOUAC_SCRATCH`, "--nodes=2", "--bivouac")
	j.ends(t, "COMPLETED")
	j.says(t, "0\n1\n")
}

func TestFailingScript(t *testing.T) {
	c := begin(t)
	c.submit(t, "alice", "exit 7", bivouac("alice", "2")...).ends(t, "FAILED")
}

func TestCancel(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", touchAll+"exec 3> $BIVOUAC_SCRATCH/open\n"+hold, bivouac("alice", "4")...)
	j.holds(t, "0")
	c.as(t, "alice", "scancel "+j.id)
	j.ends(t, "CANCELLED")
}

// The prologs of three nodes wait for the fourth when the job is cancelled.
func TestCancelDuringProlog(t *testing.T) {
	c := begin(t)
	c.on(t, "node4", "kill -STOP $(cat /run/slurmd.pid)")
	j := c.submit(t, "alice", touchAll, bivouac("alice", "4")...)
	eventually(t, soon, "the prolog on node1", func() bool {
		_, err := c.try("exec", "node1", "test", "-e", "/run/bivouac/"+j.id)
		return err == nil
	})
	c.as(t, "alice", "scancel "+j.id)
	c.on(t, "node4", "kill -CONT $(cat /run/slurmd.pid)")
	j.ends(t, "CANCELLED")
}

func TestTimeLimit(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", touchAll+hold, bivouac("alice", "2", "--time=1")...)
	j.ends(t, "TIMEOUT")
}

// A step is killed for its memory; where there is no memory cgroup, it is killed as the kernel would.
func TestOutOfMemory(t *testing.T) {
	c := begin(t)
	eat := `srun bash -c 'exec 3> $BIVOUAC_SCRATCH/open; head -c 800M /dev/zero | tail > /dev/null'`
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		eat = `srun bash -c 'exec 3> $BIVOUAC_SCRATCH/open; kill -KILL $$'`
	}
	j := c.submit(t, "alice", eat, bivouac("alice", "2", "--mem=200M")...)
	j.ends(t, "OUT_OF_MEMORY", "FAILED")
}

// One process of the job has left its session and ignores signals, and root's shell sits in the mount.
func TestProcessLeftBehind(t *testing.T) {
	c := begin(t)
	left := `setsid bash -c 'trap "" HUP TERM INT; cd $BIVOUAC_SCRATCH; exec 3> open; while :; do echo x >&3; sleep 0.2; done' > /dev/null 2>&1 &` + "\n"
	j := c.submit(t, "alice", touchAll+left+hold, bivouac("alice", "2")...)
	j.holds(t, "0")
	root := c.on(t, "node1", "cd /mnt/bivouac/"+j.id+"/scratch && { setsid sleep 300 < /dev/null > /dev/null 2>&1 3< . & echo $!; }")
	j.release(t)
	j.ends(t, "COMPLETED")
	c.nothingLeft(t)
	c.on(t, "node1", "kill "+root)
}

// A job that is requeued keeps its id and begins with an empty scratch.
func TestRequeue(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", "ls -A $BIVOUAC_SCRATCH >> listings\n"+touchAll+hold, bivouac("alice", "2", "--requeue")...)
	j.holds(t, "0")
	c.as(t, "alice", "scontrol requeue "+j.id)
	j.holds(t, "1")
	j.release(t)
	j.ends(t, "COMPLETED")
	if got := c.as(t, "alice", "cat listings"); got != "" {
		t.Errorf("the scratch of a run was not empty: %s", got)
	}
}
