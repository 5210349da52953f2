//go:build slurm

package slurm

import (
	"strings"
	"testing"
	"time"
)

// After any process dies or hangs, the job ends, the nodes stay in service and nothing is left.

// TestDaemonKilled: the program is upgraded while the job runs: the keepers continue with their old program.
func TestDaemonKilled(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", touchAll+hold, bivouac("alice", "4")...)
	j.holds(t, "0")
	eventually(t, soon, "node_exporter finds the metrics of node2", func() bool {
		out := c.on(t, "node2", "cat /var/log/bivouac_"+j.id+".prom || true")
		return strings.Contains(out, `bivouac_daemon_up{jobid="`+j.id+`"} 1`) && strings.Contains(out, `bivouac_nodes_up{jobid="`+j.id+`"} 4`)
	})
	c.on(t, "node2", "p=$(command -v bivouac) && cp $p $p.new && mv $p.new $p")
	c.on(t, "node2", "kill -KILL "+j.daemon(t, "node2"))
	j.release(t)
	j.ends(t, "COMPLETED")
}

func TestKeeperKilled(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", touchAll+hold, bivouac("alice", "2")...)
	j.holds(t, "0")
	c.on(t, "node2", "kill -KILL $(cut -d' ' -f1 /run/bivouac/"+j.id+"/keeper.pid)")
	j.release(t)
	j.ends(t, "COMPLETED")
}

// TestDaemonHangs: a step waits in a hung daemon's mount; the watchdog ends that well before Slurm drops the node.
func TestDaemonHangs(t *testing.T) {
	c := begin(t)
	read := "srun --overlap -N1 -n1 -w node2 bash -c 'ls -l $BIVOUAC_SCRATCH; echo x > $BIVOUAC_SCRATCH/new'\ntrue\n"
	j := c.submit(t, "alice", touchAll+hold+read, bivouac("alice", "2", "--nodelist=node[1-2]")...)
	j.holds(t, "0")
	c.on(t, "node2", "kill -STOP "+j.daemon(t, "node2"))
	hung := time.Now()
	j.release(t)
	j.ends(t, "COMPLETED")
	if d := time.Since(hung); d > 55*time.Second {
		t.Errorf("the job hung for %v", d)
	}
}

func TestCancelWhileDaemonHangs(t *testing.T) {
	c := begin(t)
	read := "srun --overlap -N1 -n1 -w node2 bash -c 'ls -l $BIVOUAC_SCRATCH; echo x > $BIVOUAC_SCRATCH/new'\n"
	j := c.submit(t, "alice", touchAll+hold+read, bivouac("alice", "2", "--nodelist=node[1-2]")...)
	j.holds(t, "0")
	c.on(t, "node2", "kill -STOP "+j.daemon(t, "node2"))
	j.release(t)
	c.as(t, "alice", "scancel "+j.id)
	j.ends(t, "CANCELLED")
}

func TestSlurmdRestart(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", touchAll+hold, bivouac("alice", "4")...)
	j.holds(t, "0")
	c.do(t, "restart", "node2")
	c.on(t, "node2", "test -e /mnt/bivouac/"+j.id+"/data/tree/tree/hello")
	j.release(t)
	j.ends(t, "COMPLETED")
}

func TestSlurmctldRestart(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", touchAll+hold+"cat $BIVOUAC_DATA/tree/tree/hello > $BIVOUAC_SCRATCH/copy", bivouac("alice", "4")...)
	j.holds(t, "0")
	c.do(t, "restart", "ctl")
	c.on(t, "node2", "test -e /mnt/bivouac/"+j.id+"/data/tree/tree/hello")
	j.release(t)
	j.ends(t, "COMPLETED")
}

// TestNodeDied: a node loses power, and returns with the job's directory on disk; the next job's prolog removes it.
func TestNodeDied(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", touchAll+hold, bivouac("alice", "2", "--nodelist=node[3-4]", "--no-requeue")...)
	j.holds(t, "0")
	c.do(t, "kill-node", "node4")
	j.ends(t, "NODE_FAIL")
	c.do(t, "start-node", "node4")
	c.do(t, "idle", "60")
	// Slurm may have run an epilog there by now, else the next prolog finds it.
	if left := c.on(t, "node4", "ls /var/lib/bivouac"); left != "" && !strings.HasPrefix(left, j.id+".") {
		t.Errorf("on the disk of the node that died: %q, want the directory of job %s, or nothing", left, j.id)
	}
	c.submit(t, "bob", touchAll, bivouac("bob", "4")...).ends(t, "COMPLETED")
}

// TestSlurmdAway: after a long absence of slurmd, Slurm ended the job and its steps: no epilog will run there.
func TestSlurmdAway(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", touchAll+hold, bivouac("alice", "2", "--nodelist=node[3-4]", "--no-requeue")...)
	j.holds(t, "0")
	c.do(t, "stop-daemon", "node4")
	j.ends(t, "NODE_FAIL")
	c.on(t, "node4", `for p in $(pgrep slurmstepd) $(find /sys/fs/cgroup/freezer -path '*job_*' -name cgroup.procs -exec cat {} +); do kill -KILL $p; done; true`)
	c.do(t, "start-daemon", "node4")
	c.do(t, "idle", "60")
	c.submit(t, "bob", touchAll, bivouac("bob", "4")...).ends(t, "COMPLETED")
}

// TestPeerNeverAnswers: one node's daemons never answer: the job fails and names the node, and no node is drained.
func TestPeerNeverAnswers(t *testing.T) {
	c := begin(t)
	stop := `while [ ! -e /tmp/enough ]; do cat /run/bivouac/*/daemon.pid 2>/dev/null | while read -r p _; do kill -STOP $p; done; done`
	c.on(t, "node3", "rm -f /tmp/enough; setsid timeout 90 bash -c '"+stop+"' > /dev/null 2>&1 < /dev/null &")
	t.Cleanup(func() { _, _ = c.try("exec", "node3", "touch", "/tmp/enough") })
	j := c.submit(t, "alice", "echo the script ran\n"+touchAll, bivouac("alice", "4")...)
	j.ends(t, "FAILED")
	j.says(t, "bivouac: ", "node3")
	if out := j.output(t); strings.Contains(out, "the script ran") {
		t.Errorf("the batch script ran without its bivouac:\n%s", out)
	}
}

// TestTruncatedTar: a source that is damaged after the first block fails the job, with a message in its output.
func TestTruncatedTar(t *testing.T) {
	c := begin(t)
	c.as(t, "alice", "head -c 700000 tree.tar > short.tar")
	j := c.submit(t, "alice", "echo the script ran\n", "--nodes=2", "--bivouac-stage-in="+far("alice", "short.tar"))
	j.ends(t, "FAILED")
	j.says(t, "bivouac: ", "short.tar")
	if out := j.output(t); strings.Contains(out, "the script ran") {
		t.Errorf("the batch script ran without its data:\n%s", out)
	}
}

// TestCovers: the dataset has its cover on every node, and again after its daemon was killed; every job here that
// stages in has such mounts, and leaves none.
func TestCovers(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", touchAll+hold+"cat $BIVOUAC_DATA/tree/tree/hello > $BIVOUAC_SCRATCH/copy", bivouac("alice", "2", "--nodelist=node[1-2]", "--bivouac-opts=kernel-view=off")...)
	j.holds(t, "0")
	tree := "/mnt/bivouac/" + j.id + "/data/tree"
	covered := "for i in $(seq 200); do cat " + tree + "/tree/hello > /dev/null 2>&1 && grep -q ' " + tree + " fuse.bivouac ro,' /proc/mounts && exit 0; sleep 0.1; done; cat /proc/mounts; exit 1"
	c.on(t, "node1", covered)
	c.on(t, "node2", covered)
	c.on(t, "node2", "kill -KILL "+j.daemon(t, "node2"))
	c.on(t, "node2", covered)
	j.release(t)
	j.ends(t, "COMPLETED")
}

// TestViews: the dataset has its kernel view on every node, which its user reads, and again after its daemon was
// killed. Nothing of it is left after the job, including loop devices.
func TestViews(t *testing.T) {
	c := begin(t)
	c.on(t, "node1", "test -e /dev/loop-control && grep -q '\terofs$' /proc/filesystems && grep -q '\toverlay$' /proc/filesystems")
	j := c.submit(t, "alice", touchAll+hold+"cat $BIVOUAC_DATA/tree/tree/hello > $BIVOUAC_SCRATCH/copy", bivouac("alice", "2", "--nodelist=node[1-2]")...)
	j.holds(t, "0")
	tree := "/mnt/bivouac/" + j.id + "/data/tree"
	viewed := "for i in $(seq 200); do cat " + tree + "/tree/hello > /dev/null 2>&1 && grep -q ' " + tree + " overlay ro,nosuid,nodev' /proc/mounts && test $(stat -f -c %T " + tree + ") = overlayfs && exit 0; sleep 0.1; done; cat /proc/mounts /run/bivouac/*/log; exit 1"
	c.on(t, "node1", viewed)
	c.on(t, "node2", viewed)
	c.on(t, "node2", "kill -KILL "+j.daemon(t, "node2"))
	c.on(t, "node2", viewed)
	j.release(t)
	j.ends(t, "COMPLETED")
	c.on(t, "node1", "for i in $(seq 100); do cat /sys/block/loop*/loop/backing_file 2>/dev/null | grep -q '/"+j.id+"[.]' || exit 0; sleep 0.1; done; cat /sys/block/loop*/loop/backing_file; exit 1")
}
