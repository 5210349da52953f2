//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// How the plugin handles options, in all the ways in which Slurm loses, repeats and inherits them.

// envOf returns the output of ./showenv in a job.
func envOf(id string) string {
	m := "/mnt/bivouac/" + id
	return "BIVOUAC=" + m + "\nBIVOUAC_DATA=" + m + "/data\nBIVOUAC_SCRATCH=" + m + "/scratch\n"
}

func TestRefused(t *testing.T) {
	c := begin(t)
	secret := filepath.Join(c.home("bob"), "secret.tar")
	if err := os.WriteFile(secret, []byte(strings.Repeat("x", 1024)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.home("alice"), "empty.tar"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, option, want string
	}{
		{"missing", "--bivouac-stage-in=/mnt/pfs/nothing.tar", "/mnt/pfs/nothing.tar"},
		{"unreadable", "--bivouac-stage-in=" + far("bob", "secret.tar"), "secret.tar"},
		{"empty", "--bivouac-stage-in=" + far("alice", "empty.tar"), "empty.tar"},
		{"unknown key", "--bivouac-opts=colour=blue", "colour"},
		{"bad size", "--bivouac-opts=capacity=much", "much"},
		{"bad wait", "--bivouac-opts=wait=forever", "forever"},
		{"no target", "--bivouac-stage-out=ckpt", "ckpt"},
		{"unwritable target", "--bivouac-stage-out=ckpt:/etc/nothing", "/etc"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := c.sbatch(t, "alice", "true", tt.option)
			if err == nil {
				t.Fatalf("sbatch %s was accepted: %s", tt.option, out)
			}
			if !strings.HasPrefix(out, "sbatch: error: bivouac: ") || !strings.Contains(out, tt.want) || strings.Count(out, "\n") != 1 {
				t.Errorf("sbatch %s says\n%swant one line with %q", tt.option, out, tt.want)
			}
		})
	}
	if q := c.do(t, "exec", "ctl", "squeue", "-h"); q != "" {
		t.Errorf("jobs were submitted: %s", q)
	}
}

func TestMissingArgument(t *testing.T) {
	c := begin(t)
	out, err := c.try("as", "alice", "ctl", "sbatch", "--wrap", "true", "--bivouac-stage-in=")
	if err == nil || strings.Contains(out, "(null)") {
		t.Errorf("--bivouac-stage-in= says %q", out)
	}
}

// TestNoBivouac: without the options the plugin has no effect.
func TestNoBivouac(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", "env | grep -i bivouac_; echo end", "--nodes=2")
	j.ends(t, "COMPLETED")
	if got := j.output(t); got != "end\n" {
		t.Errorf("a job without a bivouac says %q", got)
	}
}

func TestEnvironment(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", "./showenv; srun -n1 -N1 ./showenv; env | grep KEY", bivouac("alice", "2")...)
	j.ends(t, "FAILED") // the last grep finds nothing
	if got, want := j.printed(t), envOf(j.id)+envOf(j.id); got != want {
		t.Errorf("the job's environment has\n%swant\n%s", got, want)
	}
}

func TestExportNone(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", "./showenv\nunset SLURM_EXPORT_ENV\nexport PATH USER=alice\n"+touchAll, bivouac("alice", "2", "--export=NONE")...)
	j.ends(t, "COMPLETED")
	if got, want := j.printed(t), envOf(j.id); got != want {
		t.Errorf("the job's environment has\n%swant\n%s", got, want)
	}
}

// TestNestedSbatch: a job submitted from within a bivouac job has no bivouac by default, and can request one.
func TestNestedSbatch(t *testing.T) {
	c := begin(t)
	nested := `sbatch -W -o plain.out --wrap 'env | grep -c BIVOUAC_; true'
sbatch -W -o own.out --bivouac --wrap 'echo $SLURM_JOB_ID $BIVOUAC'
`
	j := c.submit(t, "alice", nested, bivouac("alice", "1")...)
	j.ends(t, "COMPLETED")
	if got := c.as(t, "alice", "cat plain.out"); got != "0" {
		t.Errorf("the nested job without the option says %q, want 0", got)
	}
	id, mount, _ := strings.Cut(c.as(t, "alice", "cat own.out"), " ")
	if id == j.id || mount != "/mnt/bivouac/"+id {
		t.Errorf("the nested job %s with the option has BIVOUAC=%s", id, mount)
	}
}

// TestSrunJobid: a step from outside finds the job's bivouac by the node's state, not by its environment.
func TestSrunJobid(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", hold, bivouac("alice", "2")...)
	j.holds(t, "0")
	got := c.as(t, "alice", "srun --jobid="+j.id+" --overlap -N1 -n1 ./showenv 2>/dev/null")
	if want := strings.TrimSpace(envOf(j.id)); got != want {
		t.Errorf("the step's environment has\n%s\nwant\n%s", got, want)
	}
	if got := c.as(t, "alice", "srun --jobid="+j.id+` --overlap -N1 -n1 bash -c 'cat $BIVOUAC_DATA/tree/tree/hello' 2>/dev/null`); got != "hello alice" {
		t.Errorf("the step reads %q", got)
	}
	j.release(t)
	j.ends(t, "COMPLETED")
}

// TestStepOption: a step cannot request a bivouac.
func TestStepOption(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", "srun --bivouac true 2>&1 && echo it was accepted", "--nodes=1")
	j.ends(t, "FAILED")
	j.says(t, "not to a step")
	other := c.submit(t, "alice", hold, "--nodes=1")
	other.holds(t, "0")
	if out, err := c.try("as", "alice", "ctl", "srun", "--jobid="+other.id, "--overlap", "--bivouac", "true"); err == nil || !strings.Contains(out, "has no bivouac") {
		t.Errorf("srun --jobid --bivouac on a job without one: %v, %q", err, out)
	}
	other.release(t)
	other.ends(t, "COMPLETED")
}

func TestSrunAllocates(t *testing.T) {
	c := begin(t)
	out := c.as(t, "alice", `srun -N2 --bivouac-stage-in=tree.tar bash -c 'cat $BIVOUAC_DATA/tree/tree/hello' 2>/dev/null`)
	if out != "hello alice\nhello alice" {
		t.Errorf("srun says %q", out)
	}
	out = c.as(t, "alice", `salloc -N2 --bivouac-stage-in=tree.tar srun -n1 -N1 bash -c 'cat $BIVOUAC_DATA/tree/tree/hello' 2>/dev/null`)
	if out != "hello alice" {
		t.Errorf("salloc and srun say %q", out)
	}
}

// TestArray: every task of an array is a job with its own bivouac.
func TestArray(t *testing.T) {
	c := begin(t)
	out, err := c.sbatch(t, "alice", `echo $SLURM_JOB_ID $BIVOUAC >> array.out; `+touchAll, bivouac("alice", "2", "--array=1-3", "--wait")...)
	if err != nil {
		t.Fatalf("the array failed: %v %s", err, out)
	}
	lines := strings.Split(c.as(t, "alice", "cat array.out"), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d tasks ran: %q", len(lines), lines)
	}
	for _, l := range lines {
		if id, mount, _ := strings.Cut(l, " "); mount != "/mnt/bivouac/"+id {
			t.Errorf("task %s has BIVOUAC=%s", id, mount)
		}
	}
}

// TestHetJob: each component of a heterogeneous job has its own bivouac, or none, by its own options.
func TestHetJob(t *testing.T) {
	c := begin(t)
	body := `#SBATCH --nodes=1 --bivouac-stage-in=` + far("alice", "tree.tar") + `:first
#SBATCH hetjob
#SBATCH --nodes=2 --bivouac-stage-in=` + far("alice", "tree.tar") + `:second
#SBATCH hetjob
#SBATCH --nodes=1
srun --het-group=0-2 bash -c 'echo $(hostname) ${BIVOUAC:-none} $([ -z "$BIVOUAC" ] || ls $BIVOUAC_DATA)' | sort
`
	j := c.submit(t, "alice", body)
	j.ends(t, "COMPLETED")
	m := "/mnt/bivouac/"
	next := c.as(t, "alice", "echo $(("+j.id+" + 1))")
	for _, want := range []string{" " + m + j.id + " first\n", " " + m + next + " second\n", " none\n"} {
		j.says(t, want)
	}
}

// TestTwoUsers: two users share their nodes and see nothing of each other.
func TestTwoUsers(t *testing.T) {
	c := begin(t)
	a := c.submit(t, "alice", touchAll+hold+touchAll, bivouac("alice", "4")...)
	b := c.submit(t, "bob", touchAll+hold+touchAll, bivouac("bob", "4")...)
	a.holds(t, "0")
	b.holds(t, "0")
	for _, p := range []string{"/mnt/bivouac/" + a.id + "/data", "/mnt/bivouac/" + a.id + "/scratch", "/var/lib/bivouac/" + a.id + ".0", "/run/bivouac/" + a.id + "/d"} {
		if out, err := c.try("as", "bob", "node1", "ls", p); err == nil {
			t.Errorf("bob lists %s: %s", p, out)
		}
	}
	a.release(t)
	a.ends(t, "COMPLETED")
	c.on(t, "node1", "test -e /mnt/bivouac/"+b.id+"/data/tree/tree/hello")
	b.release(t)
	b.ends(t, "COMPLETED")
}

// TestOtherSite tests a site without munge and with a private /tmp per job, on a separate cluster.
func TestOtherSite(t *testing.T) {
	t.Parallel()
	// Linux 6.18 binds a mount namespace to a file only if its parent was made on the same processor.
	c := cluster{dir: t.TempDir(), config: "testdata/nomunge.yaml", nodes: "2", conf: "JobContainerType=job_container/tmpfs", first: 9000, cpu: "0"}
	t.Cleanup(c.down)
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	t.Run("NoMunge", c.withoutMunge)
	t.Run("JobContainer", c.inJobContainer)
	if t.Failed() {
		logs, _ := c.try("logs", "20")
		t.Logf("logs:\n%s", logs)
	}
}

// withoutMunge: the job key is passed with the submission, and the job never sees it.
func (c cluster) withoutMunge(t *testing.T) {
	j := c.submit(t, "alice", touchAll+"env | grep -c BIVOUAC_KEY; srun env | grep -c BIVOUAC_KEY; true", bivouac("alice", "2")...)
	j.ends(t, "COMPLETED")
	if got := j.printed(t); got != "0\n0\n" {
		t.Errorf("the key is in the job's environment: %s", got)
	}
	out := c.as(t, "alice", "salloc -N1 --bivouac bash -c 'env | grep -c BIVOUAC_KEY; srun env | grep -c BIVOUAC_KEY; true' 2>/dev/null")
	if out != "0\n0" {
		t.Errorf("the key is in salloc's environment: %s", out)
	}
	c.nothingLeft(t)
}

// inJobContainer: the steps of a job run in a private mount namespace, which receives no later mounts. Scratch and
// datasets are visible there, also a dataset that is staged later; from Linux 6.9 on, scratch stays visible after its
// daemon was killed.
func (c cluster) inJobContainer(t *testing.T) {
	script := `touch /tmp/own && echo before > $BIVOUAC_SCRATCH/file && srun ls $BIVOUAC_SCRATCH
` + hold + `srun cat $BIVOUAC_SCRATCH/file
bivouac stage-in ` + far("alice", "tree") + ` && srun cat $BIVOUAC_DATA/tree/hello
`
	j := c.submit(t, "alice", script, "--nodes=2", "--bivouac")
	j.holds(t, "0")
	c.on(t, "node1", "test ! -e /tmp/own")
	if kernelHasPassthrough(t) { // the same kernel version has the support that adoption needs
		c.on(t, "node1", "kill -KILL "+j.daemon(t, "node1"))
	}
	j.release(t)
	j.ends(t, "COMPLETED")
	if got, want := j.printed(t), "file\nfile\nbefore\nbefore\nhello alice\nhello alice\n"; got != want {
		t.Errorf("the job says\n%s, want\n%s", got, want)
	}
	c.nothingLeft(t)
}

// containers uses the job's directories in three concurrent containers of alice, as /opt/data and /opt/work, during a
// stage-in, as /inside says. Each is in a user namespace with an image of empty directories.
const containers = `
img=$(mktemp -d)
mkdir -p $img/{usr,dev,proc,sys,tmp,etc,home,mnt,run,opt/data,opt/work,var/tmp}
ln -s usr/{bin,lib,lib64} $img
touch $img/etc/{passwd,group,hosts,resolv.conf}
cat > $img/inside <<'END'
set -e
read -r _ who < /opt/data/tree/tree/hello && [ "$who" = alice ]
echo "written in $1" > /opt/work/$1
until [ -e /opt/work/staged ]; do sleep 0.1; done
read -r _ who < /opt/data/late/hello && [ "$who" = alice ]
END
bwrap --unshare-user --unshare-pid --ro-bind $img / --ro-bind /usr /usr --dev /dev --proc /proc --bind $BIVOUAC_DATA /opt/data --bind $BIVOUAC_SCRATCH /opt/work bash /inside bubblewrap &
bubblewrap=$!
ch-run -b /usr:/usr -b $BIVOUAC_DATA:/opt/data -b $BIVOUAC_SCRATCH:/opt/work $img -- bash /inside charliecloud &
charliecloud=$!
bundle=$(mktemp -d)
runc spec --rootless --bundle $bundle
bind() { echo -n "{\"type\": \"none\", \"options\": [\"rbind\"], \"source\": \"$1\", \"destination\": \"$2\"},"; }
sed -i 's|"terminal": true|"terminal": false|; s|"sh"|"bash", "/inside", "runc"|; s|"rootfs"|"'$img'"|
	s|"mounts": \[|&'"$(bind /usr /usr; bind $BIVOUAC_DATA /opt/data; bind $BIVOUAC_SCRATCH /opt/work)"'|' $bundle/config.json
runc --root $bundle/state run --bundle $bundle job$SLURM_JOB_ID &
runc=$!
for c in bubblewrap charliecloud runc; do
	until [ -e $BIVOUAC_SCRATCH/$c ]; do kill -0 ${!c} || exit 2; sleep 0.1; done
done
`

// TestContainer reads and writes the job's directories in containers, with a dataset that is staged later.
func TestContainer(t *testing.T) {
	c := begin(t)
	c.as(t, "alice", "mkdir -p late && cp tree/hello late")
	script := containers + "bivouac stage-in " + far("alice", "late") + ` && touch $BIVOUAC_SCRATCH/staged
wait $bubblewrap && wait $charliecloud && wait $runc || exit 3
srun --nodes=1 --ntasks=1 --nodelist=$(scontrol show hostnames | tail -n 1) cat $BIVOUAC_SCRATCH/{bubblewrap,charliecloud,runc}
rm -rf $img $bundle
`
	j := c.submit(t, "alice", script, bivouac("alice", "2")...)
	j.ends(t, "COMPLETED")
	j.says(t, "written in bubblewrap\nwritten in charliecloud\nwritten in runc\n")
}

// TestSuspend suspends a job, whose daemons continue, and resumes it.
func TestSuspend(t *testing.T) {
	c := begin(t)
	j := c.submit(t, "alice", hold+touchAll, bivouac("alice", "2")...)
	j.holds(t, "0")
	c.do(t, "exec", "ctl", "scontrol", "suspend", j.id)
	eventually(t, soon, "the job is suspended", func() bool { return j.state(t) == "SUSPENDED" })
	c.on(t, "node2", "ls /mnt/bivouac/"+j.id+"/data/tree/tree/hello")
	j.release(t)
	c.do(t, "exec", "ctl", "scontrol", "resume", j.id)
	j.ends(t, "COMPLETED")
}
