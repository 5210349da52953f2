//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Nothing of a job's bivouac stays, however the job ends.

func TestNormalEnd(t *testing.T) {
	c := begin(t)
	kept := far("alice", "kept")
	guide, err := os.ReadFile("../../deploy/docs/user-guide.md")
	if err != nil {
		t.Fatal(err)
	}
	comment := regexp.MustCompile("`(scontrol update [^`]+)`").FindSubmatch(guide)
	if comment == nil {
		t.Fatal("the user guide has no line for the comment of a job")
	}
	script := touchAll + "set -e\n" + string(comment[1]) + "\n"
	j := c.submit(t, "alice", script, bivouac("alice", "4", "--bivouac-stage-out=ckpt:"+kept)...)
	j.ends(t, "COMPLETED")
	if s := c.do(t, "exec", "ctl", "scontrol", "-o", "show", "job", j.id); !strings.Contains(s, " Comment=bivouac: 4 nodes; tree ready, ") {
		t.Errorf("the comment of the job is not the line of its report:\n%s", s)
	}
	c.nothingLeft(t)
	for _, r := range []string{"rank0", "rank1", "rank2", "rank3"} {
		if _, err := os.Stat(filepath.Join(c.home("alice"), "kept", r)); err != nil {
			t.Errorf("stage-out: %v", err)
		}
	}
}

// TestStageOutList: files that cannot be staged out are listed where the user finds the list; the rest is copied.
func TestStageOutList(t *testing.T) {
	c := begin(t)
	script := `mkdir $BIVOUAC_SCRATCH/ckpt && mkfifo $BIVOUAC_SCRATCH/ckpt/pipe && echo x > $BIVOUAC_SCRATCH/ckpt/file` + "\n"
	j := c.submit(t, "alice", script, "--nodes=2", "--bivouac-stage-out=ckpt:"+far("alice", "partly"))
	j.ends(t, "COMPLETED")
	c.nothingLeft(t)
	if b, err := os.ReadFile(filepath.Join(c.home("alice"), "partly", "file")); err != nil || string(b) != "x\n" {
		t.Errorf("stage-out: %q, %v", b, err)
	}
	lists, err := filepath.Glob(filepath.Join(c.home("alice"), "bivouac-"+j.id+"-*.not-copied"))
	if err != nil || len(lists) != 1 {
		t.Fatalf("lists of what was not copied: %q, %v, want one", lists, err)
	}
	if b, err := os.ReadFile(lists[0]); err != nil || !strings.HasPrefix(string(b), `"ckpt/pipe": `) {
		t.Errorf("%s = %q, %v", lists[0], b, err)
	}
}

// TestStageOutTold: a failing target is reported in the output: during the job, and once for all nodes at its end.
func TestStageOutTold(t *testing.T) {
	c := begin(t)
	c.as(t, "alice", "mkdir -p barred")
	script := "chmod 555 barred\n" + `srun --overlap --ntasks-per-node=1 bash -c 'mkdir -p $BIVOUAC_SCRATCH/ckpt && head -c 1000 /dev/zero > $BIVOUAC_SCRATCH/ckpt/$SLURM_PROCID'` + "\n" + hold
	target := far("alice", "barred")
	j := c.submit(t, "alice", script, "--nodes=4", "--bivouac-stage-out=ckpt:"+target)
	j.holds(t, "0")
	begins := "bivouac: stage-out of ckpt to " + target
	eventually(t, soon, "it is told while the job runs", func() bool {
		return strings.Contains(j.output(t), begins+" fails so far: permission denied (")
	})
	j.release(t)
	j.ends(t, "COMPLETED")
	c.nothingLeft(t)
	j.says(t, begins+" failed: not copied, and lost with the job, 4 files of 3.9 KiB: permission denied (4, such as ", "name a directory that you may write to",
		"/mnt/pfs/home/alice/bivouac-"+j.id+"-node")
	if n := strings.Count(j.output(t), begins); n != 2 {
		t.Errorf("it is told %d times, want once while the job runs and once at its end:\n%s", n, j.output(t))
	}
}

func TestDirectorySource(t *testing.T) {
	c := begin(t)
	c.as(t, "alice", "mkdir -p above && cp -a tree above")
	j := c.submit(t, "alice", touchAll, "--nodes=3", "--bivouac-stage-in="+far("alice", "above")+":tree", "--bivouac-opts=wait=all")
	j.ends(t, "COMPLETED")
}

// TestPassthrough: complete local files of a dataset of larger files, which has no cover, are read by the kernel
// without the daemon, which uses its keeper to set this up.
func TestPassthrough(t *testing.T) {
	c := begin(t)
	c.as(t, "alice", "mkdir -p many && for i in $(seq 100); do head -c 600000 /dev/urandom > many/$i; done")
	script := `diff -r many $BIVOUAC_DATA/many && grep -o '"passthrough": [0-9]*' $BIVOUAC/.bivouac/stats` + "\n"
	j := c.submit(t, "alice", script, "--nodes=2", "--bivouac-stage-in="+far("alice", "many"), "--bivouac-opts=wait=all")
	j.ends(t, "COMPLETED")
	var opens int
	if _, err := fmt.Sscanf(j.printed(t), `"passthrough": %d`, &opens); err != nil {
		t.Fatalf("stats: %v\n%s", err, j.output(t))
	}
	if kernelHasPassthrough(t) && (opens < 20 || opens > 80) {
		t.Errorf("%d of 100 files on two nodes were read by the kernel alone:\n%s", opens, j.output(t))
	}
}

// kernelHasPassthrough skips the test before Linux 6.9.
func kernelHasPassthrough(t *testing.T) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(b), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 9
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

// TestCancelDuringProlog: the job is cancelled while the prologs of three nodes wait for the fourth.
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

// TestOutOfMemory: a step is killed for its memory use; without a memory cgroup, it is killed as by the kernel.
func TestOutOfMemory(t *testing.T) {
	c := begin(t)
	eat := `srun bash -c 'exec 3> $BIVOUAC_SCRATCH/open; head -c 800M /dev/zero | tail > /dev/null'`
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		eat = `srun bash -c 'exec 3> $BIVOUAC_SCRATCH/open; kill -KILL $$'`
	}
	j := c.submit(t, "alice", eat, bivouac("alice", "2", "--mem=200M")...)
	j.ends(t, "OUT_OF_MEMORY", "FAILED")
}

// TestProcessLeftBehind: a process has left its session and ignores signals; root's shell is in the mount.
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

// TestRequeue: a requeued job keeps its id and starts with an empty scratch. With keep, it adopts the dataset of its
// first run.
func TestRequeue(t *testing.T) {
	c := begin(t)
	c.keeps(t, "30m")
	script := "ls -A $BIVOUAC_SCRATCH >> listings\nbivouac report\necho secret > $BIVOUAC_SCRATCH/file\n" + hold
	j := c.submit(t, "alice", script, append(c.onTheSame(t), "--requeue")...)
	j.holds(t, "0")
	if first := j.output(t); !readAll(first) {
		t.Errorf("the first run has to read all files, it reports\n%s", first)
	}
	c.as(t, "alice", "scontrol requeue "+j.id)
	j.holds(t, "1")
	j.release(t)
	j.ends(t, "COMPLETED")
	if out := j.output(t); !allAdopted.MatchString(out) {
		t.Errorf("the second run has to adopt all files, it reports\n%s", out)
	}
	if got := c.as(t, "alice", "cat listings"); got != "" {
		t.Errorf("the scratch of a run was not empty: %s", got)
	}
}
