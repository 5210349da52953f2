package local

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func sum(b []byte) []byte { s := sha256.Sum256(b); return s[:] }

// TestStageOut: files written by all nodes are staged out unchanged.
func TestStageOut(t *testing.T) {
	t.Parallel()
	c := pitch(t, "3")
	from, to := c.node("0", "scratch", "ckpt"), c.path("out")
	makeTree(t, from)
	write(t, c.node("2", "scratch", "ckpt", "by2"), []byte("two"))
	if out := c.ok("stage-out", "ckpt:"+to, "--dir", c.dir); !strings.Contains(out, " files, ") {
		t.Errorf("stage-out prints %q", out)
	}
	wantSame(t, "out", strip(describe(t, to, false)), strip(describe(t, c.node("1", "scratch", "ckpt"), false)))
	for _, name := range append([]string{"run", "big", ".", "deep", "deep/er/and/deeper", "empty"}, odd...) {
		a, errA := os.Stat(filepath.Join(from, name))
		b, errB := os.Stat(filepath.Join(to, name))
		if errA != nil || errB != nil || !a.ModTime().Equal(b.ModTime()) {
			t.Errorf("%q: mtime of %v is %v (%v, %v)", name, a, b, errA, errB)
		}
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the target: %v, %v, want the mode of ckpt, 0755", info, err)
	}
	write(t, filepath.Join(from, "by2"), []byte("again"))
	c.ok("stage-out", "ckpt:out", "--dir", c.dir, "--node", "2") // over an existing tree, by a relative path
	wantFile(t, filepath.Join(to, "by2"), "again")
	c.ok("stage-out", "ckpt/by2:"+c.path("one/two"), "--dir", c.dir) // a file, into new directories
	if got := names(t, c.path("one/two")); !slices.Equal(got, []string{"by2"}) {
		t.Errorf("a file's stage-out makes %q", got)
	}
	c.ok("stage-out", ".:"+c.path("all"), "--dir", c.dir)
	wantFile(t, c.path("all/ckpt/by2"), "again")
}

// strip removes the link counts from the text of describe: hard links become separate files.
func strip(s string) string {
	for _, n := range []string{" 1 links", " 2 links"} {
		s = strings.ReplaceAll(s, n, "")
	}
	return s
}

// TestStageOutRefuses: bad input costs one line, and nothing is made.
func TestStageOutRefuses(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2")
	mkdir(t, c.node("0", "scratch", "ckpt"))
	write(t, c.node("0", "scratch", "ckpt", "f"), []byte("f"))
	if err := os.Symlink("/etc", c.node("0", "scratch", "link")); err != nil {
		t.Fatal(err)
	}
	file, out := c.path("file"), c.path("out")
	write(t, file, []byte("mine"))
	for spec, want := range map[string][]string{
		"missing:" + out:        {"scratch/missing", "no such file"},
		"ckpt/f/g:" + out:       {"scratch/ckpt/f/g", "not a directory"},
		"../data:" + out:        {"../data", "not a path in scratch"},
		"link:" + out:           {"scratch/link", "symbolic link"},
		"ckpt:" + file:          {file, "not a directory"},
		"ckpt:" + file + "/out": {file, "not a directory"},
		"ckpt":                  {"FROM:TO"},
		"ckpt:":                 {"FROM:TO"},
		":" + out:               {"FROM:TO"},
	} {
		c.fails(want, "stage-out", spec, "--dir", c.dir)
		if got := names(t, c.home); !slices.Equal(got, []string{"file", "job"}) {
			t.Fatalf("stage-out %q leaves %q", spec, got)
		}
	}
	wantFile(t, file, "mine")
}

// TestStageOutToBadDisk: files that do not fit are listed, files that fit are there, and no file is partial.
func TestStageOutToBadDisk(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := pitch(t, "2")
	to := c.path("disk")
	tmpfs(t, to, "size=256k")
	from := mkdir(t, c.node("0", "scratch", "ckpt"))
	for _, name := range []string{"big1", "big2", "big3"} {
		write(t, filepath.Join(from, name), []byte(strings.Repeat(name, 200_000)))
	}
	write(t, filepath.Join(from, "small"), []byte("fits"))
	r := c.run("stage-out", "ckpt:"+to, "--dir", c.dir)
	for _, name := range []string{"big1", "big2", "big3"} {
		if !strings.Contains(r.err, `not copied: "`+name+`": no space left on device`) {
			t.Errorf("the errors do not list %s:\n%s", name, r.err)
		}
	}
	if !strings.Contains(r.err, " of 4 files not copied: fix the errors listed above and run it again") || r.status != 1 {
		t.Errorf("status %d, errors:\n%s", r.status, r.err)
	}
	for _, name := range names(t, to) { // small, if it was copied before the others filled the disk
		if name != "small" {
			t.Errorf("on the full disk there is %q, which is not whole", name)
			continue
		}
		wantFile(t, filepath.Join(to, name), "fits")
	}
	readOnly(t, to)
	r = c.run("stage-out", "ckpt:"+to, "--dir", c.dir)
	if r.status != 1 || strings.Count(r.err, "read-only file system") < 3 {
		t.Errorf("to a read-only disk: status %d, errors:\n%s", r.status, r.err)
	}
	c.fails([]string{to, "read-only file system"}, "stage-out", "ckpt:"+to+"/new", "--dir", c.dir)
}

// TestStageOutInterrupted: Ctrl-C prints what it interrupts, and the same command resumes.
func TestStageOutInterrupted(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2")
	from, to := mkdir(t, c.node("0", "scratch", "ckpt")), c.path("out")
	for _, name := range odd {
		write(t, filepath.Join(from, name), []byte(name))
	}
	hung := c.state().Nodes[1].PID
	if err := syscall.Kill(hung, syscall.SIGSTOP); err != nil { // the other node's share is not copied
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(hung, syscall.SIGCONT) }) // it must end with the job
	out := c.start("stage-out", "ckpt:"+to, "--dir", c.dir, "--node", "0")
	eventually(t, "the first node has begun", func() bool {
		_, err := os.Stat(to)
		return err == nil
	})
	if err := out.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	c.failed(c.finish(out), to, "interrupted", "run the same command again")
	if err := syscall.Kill(hung, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are there again", func() bool {
		return c.run("stage-out", "ckpt:"+to, "--dir", c.dir, "--node", "0").status == 0
	})
	wantFile(t, filepath.Join(to, odd[0]), odd[0])
}

// TestFullStore: data that does not fit is ENOSPC without delay, and space is freed.
func TestFullStore(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2", "--capacity", "1M")
	fill(t, c.node("0", "scratch", "ballast"))
	if err := os.WriteFile(c.node("1", "scratch", "more"), make([]byte, 1<<20), 0o644); err != syscall.ENOSPC && !strings.Contains(err.Error(), "no space") {
		t.Errorf("a write to a full store: %v, want ENOSPC", err)
	}
	if err := os.Remove(c.node("1", "scratch", "more")); err != nil {
		t.Fatal(err)
	}
	src := mkdir(t, c.path("src"))
	write(t, filepath.Join(src, "small"), []byte("small"))
	c.fails([]string{src, "needs room for", "capacity=", "no space left on device"}, "stage-in", src+",overflow=fail", "--dir", c.dir)
	if err := os.Remove(c.node("1", "scratch", "ballast")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the space is back", func() bool { return c.status("0").Space.Used == 0 && c.status("1").Space.Used == 0 })
	c.stageIn(src)
	write(t, filepath.Join(src, "big"), make([]byte, 3<<20))
	c.fails([]string{src, "needs room for", "no space left on device"}, "stage-in", src+":big,overflow=fail", "--dir", c.dir)
	write(t, c.path("big.tar"), bigTar(t))
	c.fails([]string{c.path("big.tar"), "no space left on device"}, "stage-in", c.path("big.tar")+":tar,overflow=fail", "--dir", c.dir)
	if got := names(t, c.node("1", "data")); !slices.Equal(got, []string{"src"}) {
		t.Errorf("data has %q", got)
	}
	write(t, c.node("0", "scratch", "after"), make([]byte, 256<<10)) // the failed write has released its space
	wantFile(t, c.node("1", "data", "src", "small"), "small")
	c.stageIn(src + ":through")
	for _, node := range []string{"0", "1"} {
		wantFile(t, c.node(node, "data", "through", "big"), string(make([]byte, 3<<20)))
	}
	for _, node := range []string{"0", "1"} {
		if s := c.status(node).Space; s.Used > s.Capacity {
			t.Errorf("node%s uses %d of %d bytes", node, s.Used, s.Capacity)
		}
	}
}
