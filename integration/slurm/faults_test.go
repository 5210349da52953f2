//go:build slurm

package slurm

import (
	"strings"
	"testing"
	"time"
)

// Whatever dies or hangs, the job ends, the nodes stay in service and nothing is left.

// The program is upgraded while the job runs: its keepers go on with the one that they were started with.
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

// A step waits in the mount of a daemon that hangs; the watchdog ends that well before Slurm gives the node up.
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

// A node loses its power. Its disk still has the job's directory when it is back; the next job's prolog takes it away.
func TestNodeDied(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", touchAll+hold, bivouac("alice", "2", "--nodelist=node[3-4]", "--no-requeue")...)
	j.holds(t, "0")
	c.do(t, "kill-node", "node4")
	j.ends(t, "NODE_FAIL")
	c.do(t, "start-node", "node4")
	c.do(t, "idle", "60")
	// Slurm may have had an epilog run there by now, or the next prolog finds it.
	if left := c.on(t, "node4", "ls /var/lib/bivouac"); left != "" && !strings.HasPrefix(left, j.id+".") {
		t.Errorf("on the disk of the node that died: %q, want the directory of job %s, or nothing", left, j.id)
	}
	c.submit(t, "bob", touchAll, bivouac("bob", "4")...).ends(t, "COMPLETED")
}

// slurmd was away for so long that Slurm gave the job up, and its steps are gone: no epilog will ever run there.
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

// The daemons of one node never answer: the job fails by itself, with the node's name, and no node is drained.
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

// A source that goes bad behind the first block fails the job in its own output.
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

// The dataset has its cover on every node, and after its daemon was killed it has one again; every job here that stages in has
// such mounts, and leaves none.
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

// The dataset has its kernel view on every node, and its user reads it; after its daemon was killed it has one again.
// Nothing of it is left with the job, no loop device either.
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
