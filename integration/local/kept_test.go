package local

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	prolog "github.com/bivouacfs/bivouac/deploy/pitch"
	"github.com/bivouacfs/bivouac/integration/netcluster"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// slurmNode is a node whose prolog and epilog are run by the test, as by Slurm.
type slurmNode struct {
	t           *testing.T
	home, store string
	source      string
	opts        map[string]string // of the jobs
}

const keptFiles = 30

func newSlurmNode(t *testing.T) *slurmNode {
	t.Helper()
	needRoot(t)
	home, err := os.MkdirTemp("", "kept") // short, as socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	n := &slurmNode{t: t, home: home, store: filepath.Join(home, "store"), source: filepath.Join(home, "source")}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	sh(t, `chmod 755 "$1"; mkdir "$1/store" "$1/source"`, home)
	for i := range keptFiles {
		if err := os.WriteFile(n.file(i), []byte(strings.Repeat(fmt.Sprintf("file %02d\n", i), 2000)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (n *slurmNode) file(i int) string { return filepath.Join(n.source, fmt.Sprintf("f%02d", i)) }

// script runs the prolog or the epilog of a job.
func (n *slurmNode) script(name, id string, uid int, keep string) {
	n.t.Helper()
	config := filepath.Join(n.home, "bivouac.yaml")
	site := fmt.Sprintf("store: [%[1]s/store]\nrun: %[1]s/run\nmount: %[1]s/mnt\nlog: %[1]s/log\nkeep: %[2]s\n", n.home, keep)
	if err := os.WriteFile(config, []byte(site), 0o644); err != nil {
		n.t.Fatal(err)
	}
	spec, err := (&prolog.Spec{V: prolog.SpecVersion, Opts: n.opts, StageIn: []job.Dataset{{Source: n.source, Name: "d"}}}).Encode()
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(netcluster.Binary(n.t), name, "--config", config)
	cmd.Env = append(os.Environ(), "SPANK_BIVOUAC_SPEC="+spec, "SLURM_JOB_ID="+id, fmt.Sprint("SLURM_JOB_UID=", uid), fmt.Sprint("SLURM_JOB_GID=", uid),
		"SLURM_JOB_NODELIST=node1", "SLURMD_NODENAME=node1")
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// job runs a job, compares the dataset with the source, and returns its status.
func (n *slurmNode) job(id string, uid int, keep string) (ds daemon.DatasetStatus) {
	n.t.Helper()
	n.script("prolog", id, uid, keep)
	ended := false
	end := func() {
		if !ended {
			ended = true
			n.script("epilog", id, uid, keep)
		}
	}
	defer end()
	ds = n.dataset(id, "the dataset is complete", func(ds daemon.DatasetStatus) bool { return ds.Phase == cluster.Sealed || ds.Phase.Ended() })
	mnt := filepath.Join(n.home, "mnt", id)
	sh(n.t, `setpriv --reuid "$3" --regid "$3" --clear-groups sh -c 'diff -r "$1" "$2/data/d" && echo a secret of scratch >"$2/scratch/f"' sh "$1" "$2"`, n.source, mnt, fmt.Sprint(uid))
	end()
	return ds
}

// dataset waits until the job's dataset satisfies the condition.
func (n *slurmNode) dataset(id, what string, is func(daemon.DatasetStatus) bool) (ds daemon.DatasetStatus) {
	n.t.Helper()
	j := job.File{Dirs: job.Dirs{Run: filepath.Join(n.home, "run", id, "d")}}
	ctl := daemon.NewCtl(j.CtlSocket())
	eventually(n.t, what, func() bool {
		s, err := ctl.Status(n.t.Context())
		if err != nil || len(s.Datasets) == 0 {
			return false
		}
		ds = s.Datasets[0]
		return is(ds)
	})
	return ds
}

// kill kills the job's process with this pid file.
func (n *slurmNode) kill(id, file string) {
	n.t.Helper()
	sh(n.t, `read pid rest <"$1"; kill -9 "$pid"`, filepath.Join(n.home, "run", id, file))
}

// kept returns the entries of the store when no job runs.
func (n *slurmNode) kept() []string {
	n.t.Helper()
	entries, err := os.ReadDir(n.store)
	if err != nil {
		n.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestKept: with keep, a user's next job adopts the files on the node that have changed neither in the source nor on
// the node, and reads only the others. Scratch is removed. Another user's job gets no files and removes the first
// user's; after the time, and without keep, nothing is left.
func TestKept(t *testing.T) {
	t.Parallel()
	n := newSlurmNode(t)
	const a, b = 65534, 1 // users that exist on every machine
	if ds := n.job("4711", a, "30m"); ds.Adopted != 0 || ds.SourceBytes == 0 {
		t.Errorf("the first job: adopted %d files, %d bytes read from the source", ds.Adopted, ds.SourceBytes)
	}
	if k := n.kept(); len(k) != 1 || !strings.HasPrefix(k[0], fmt.Sprintf(".kept.%d.", a)) {
		t.Fatalf("kept: %q", k)
	}
	sh(t, `! grep -r "a secret" "$1"; test -z "$(find "$1" -mindepth 1 -maxdepth 1 ! -perm 700)"`, n.store)
	changed, err := os.ReadFile(n.file(3))
	if err != nil {
		t.Fatal(err)
	}
	changed[5]++
	if err := os.WriteFile(n.file(3), changed, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(n.file(3), time.Time{}, time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	sh(t, `grep -rl "file 05" "$1" | xargs sed -i "1s/file 05/file 50/"`, n.store) // as its user may
	size := int64(len(changed))
	if ds := n.job("4712", a, "30m"); ds.Adopted != keptFiles-2 || ds.AdoptedBytes != (keptFiles-2)*size || ds.SourceBytes != 2*size {
		t.Errorf("the second job: adopted %d files with %d bytes, %d bytes read from the source; want %d files, and the bytes of two read", ds.Adopted, ds.AdoptedBytes, ds.SourceBytes, keptFiles-2)
	}
	if k := n.kept(); len(k) != 1 {
		t.Fatalf("kept: %q, want that of the second job", k)
	}
	if ds := n.job("4713", b, "1s"); ds.Adopted != 0 || ds.SourceBytes != keptFiles*int64(len(changed)) {
		t.Errorf("another user's job: adopted %d files, %d bytes read from the source", ds.Adopted, ds.SourceBytes)
	}
	if k := n.kept(); len(k) > 1 || len(k) == 1 && !strings.HasPrefix(k[0], fmt.Sprintf(".kept.%d.", b)) {
		t.Errorf("after another user's job are kept: %q", k)
	}
	eventually(t, "what was kept is expired", func() bool {
		n.script("epilog", "9999", b, "1s")
		return len(n.kept()) == 0
	})
	n.job("4714", a, "0")
	if k := n.kept(); len(k) != 0 {
		t.Errorf("without keep are left: %q", k)
	}
}

// TestKeptIsWhole: if a job ends during its stage-in, each kept file is complete, and the next job adopts it; if its
// keeper was killed, nothing is kept.
func TestKeptIsWhole(t *testing.T) {
	t.Parallel()
	n := newSlurmNode(t)
	const uid = 65534
	whole := map[string]bool{}
	for i := range keptFiles {
		b := bytes.Repeat([]byte(fmt.Sprintf("file %02d\n", i)), 1<<16)
		whole[string(b)] = true
		if err := os.WriteFile(n.file(i), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		what string
		kill string // before the epilog
	}{
		{"the keeper is killed, and its daemon with it", "keeper.pid"},
		{"the daemon is killed", "daemon.pid"},
		{"the job is cancelled", ""},
	} {
		id := fmt.Sprint(4720 + i)
		n.opts = map[string]string{"rate": "4M"}
		n.script("prolog", id, uid, "30m")
		n.dataset(id, "some files are there", func(ds daemon.DatasetStatus) bool {
			return ds.Phase == cluster.Sealed || ds.Progress != nil && ds.Progress.Files >= 3
		})
		if c.kill != "" {
			n.kill(id, c.kill)
		}
		n.script("epilog", id, uid, "30m")
		files := 0
		for _, set := range n.kept() {
			dirs, err := filepath.Glob(filepath.Join(n.store, set, "??", "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range dirs {
				files++
				if b, err := os.ReadFile(path); err != nil || !whole[string(b)] {
					t.Errorf("%s: %s has %d bytes, %v, and is no file of the source", c.what, path, len(b), err)
				}
			}
		}
		t.Logf("%s: %d files are kept", c.what, files)
		if c.kill == "keeper.pid" && files > 0 {
			t.Errorf("%s: %d files are kept", c.what, files)
		}
		if c.kill != "" {
			continue
		}
		if files == 0 {
			t.Errorf("%s: nothing is kept", c.what)
		}
		n.opts = nil
		if ds := n.job("4730", uid, "30m"); ds.Adopted != int64(files) {
			t.Errorf("%d files were kept, %d adopted", files, ds.Adopted)
		}
	}
}
