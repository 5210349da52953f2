// Package firsttime is a newcomer's walk through the commands, in one directory and with plain Python: doctor, up,
// stage-in with an order, training, top, status, report, stage-out, down; and the same on a clean machine with
// nothing but the package. Its one idea is that each command's output has the words that its user needs next.
package firsttime

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/integration/netcluster"
)

// patience bounds the wait for an end; it is no measure of speed.
const patience = 2 * time.Minute

// walk is the newcomer's setup.
type walk struct {
	t         *testing.T
	bin, home string
	camp      string   // the directory for up
	enter     []string // prefix of every command, if not on this machine
}

// newWalk skips the test without FUSE.
func newWalk(t *testing.T) *walk {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	bin := netcluster.Binary(t)
	home, err := os.MkdirTemp("", "first") // short, as socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	w := &walk{t: t, bin: bin, home: home, camp: filepath.Join(home, "camp")}
	t.Cleanup(func() {
		if _, err := os.Stat(w.camp); err == nil {
			w.run(0, "down", "--dir", w.camp)
		}
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	return w
}

// TestFirstTime runs the walk.
func TestFirstTime(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	w := newWalk(t)
	w.sources()
	w.doctor(filepath.Join(w.home, "site.yaml"), filepath.Join(w.home, "store"))
	exports := w.up()
	w.stageIn()
	w.train(exports)
	w.look()
	w.report()
	w.end()
}

// TestReadme runs the README.md commands for a try without Slurm, with another directory and a smaller source.
func TestReadme(t *testing.T) {
	t.Parallel()
	w := newWalk(t)
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(b), "\n## Try it without Slurm\n")
	_, block, _ := strings.Cut(section, "```bash\n")
	block, _, _ = strings.Cut(block, "```")
	src := filepath.Join(w.home, "src")
	if err := os.CopyFS(src, os.DirFS("../../deploy/docs")); err != nil {
		t.Fatal(err)
	}
	for _, r := range [][2]string{{"make build\n", ""}, {"bin/bivouac", w.bin}, {"/tmp/camp", w.camp}, {`"$(go env GOROOT)/src"`, src}} {
		if !strings.Contains(block, r[0]) {
			t.Fatalf("README.md has no %q to try:\n%s", r[0], block)
		}
		block = strings.ReplaceAll(block, r[0], r[1])
	}
	out, errs, status := w.command("bash", "-ec", block)
	if status != 0 {
		t.Fatalf("status %d of:\n%s\n%s%s", status, block, out, errs)
	}
	w.says(out, "node3", "user-guide.md", "src", "ready")
	if _, err := os.Stat(w.camp); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", w.camp, err)
	}
}

// sources writes a tar of images of two classes, dark and bright, whose names do not follow the order of the
// training; order.txt has that.
func (w *walk) sources() {
	w.t.Helper()
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	var order []string
	for i := range 60 {
		name, light := fmt.Sprintf("train/dark/%02d.png", i), byte(20)
		if i%2 > 0 {
			name, light = fmt.Sprintf("train/bright/%02d.png", i), 200
		}
		order = append(order, name)
		pixels := bytes.Repeat([]byte{light + byte(i)%40}, 3000)
		err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(pixels))})
		if _, werr := archive.Write(pixels); errors.Join(err, werr) != nil {
			w.t.Fatal(err, werr)
		}
	}
	if err := archive.Close(); err != nil {
		w.t.Fatal(err)
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	script, err := os.ReadFile("testdata/train.py")
	if err != nil {
		w.t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"train.py": script, "images.tar": b.Bytes(), "order.txt": []byte(strings.Join(order, "\n") + "\n"), "site.yaml": []byte("store: [" + w.home + "/store]\n"),
	} {
		if err := os.WriteFile(filepath.Join(w.home, name), data, 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(w.home, "store"), 0o755); err != nil {
		w.t.Fatal(err)
	}
}

// command runs a command as typed, in the home directory and outside of any job.
func (w *walk) command(name string, args ...string) (out, errs string, status int) {
	w.t.Helper()
	line := slices.Concat(w.enter, []string{name}, args)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir = w.home
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "SLURM_") || strings.HasPrefix(s, "BIVOUAC")
	})
	cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+filepath.Join(w.home, "cache"))
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	cmd.WaitDelay = 10 * time.Second // its children may hold its output, and hang
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	watch := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer watch.Stop()
	if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() < 0 {
		w.t.Fatalf("%s %q: %v", name, args, err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// run runs bivouac, checks its status, and returns the output of both streams.
func (w *walk) run(status int, args ...string) (out, errs string) {
	w.t.Helper()
	out, errs, got := w.command(w.bin, args...)
	if got != status {
		w.t.Fatalf("bivouac %q: status %d, want %d:\n%s%s", args, got, status, out, errs)
	}
	return out, errs
}

// says checks that a text contains these words.
func (w *walk) says(text string, words ...string) {
	w.t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			w.t.Errorf("%q is not in:\n%s", word, text)
		}
	}
}

// doctor: every finding that is not ok has a remedy.
func (w *walk) doctor(config, store string) {
	w.t.Helper()
	out, errs, status := w.command(w.bin, "doctor", "--config", config, "--probe", "0")
	w.says(out, "configuration", config, "kernel", "/dev/fuse", "store "+store, "run bivouac doctor without --probe 0")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	failed := false
	for i, l := range lines {
		state, _, _ := strings.Cut(l, " ")
		failed = failed || state == "failed"
		if bad := state == "failed" || state == "warning" || state == "skipped"; bad && (i+1 == len(lines) || !strings.Contains(lines[i+1], "→ ")) {
			w.t.Errorf("a finding without a remedy: %s", l)
		}
	}
	if failed {
		w.says(errs, "jobs would fail on this machine: follow the remedies above")
	}
	if failed != (status == 1) || !failed && status != 0 {
		w.t.Errorf("doctor has failures: %v, and its status is %d", failed, status)
	}
}

// up returns the line that sets the variables of a job.
func (w *walk) up() string {
	w.t.Helper()
	out, _ := w.run(0, "up", "--nodes", "2", "--dir", w.camp)
	data, scratch := w.camp+"/node0/data", w.camp+"/node0/scratch"
	w.says(out, "node0\t"+w.camp+"/node0\n", "node1\t"+w.camp+"/node1\n")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := lines[len(lines)-1]
	if want := "export BIVOUAC_DATA=" + data + " BIVOUAC_SCRATCH=" + scratch; last != want {
		w.t.Errorf("the last line is %q, want %q", last, want)
	}
	return last
}

// stageIn: a typing error is answered with the valid choices, and "ready" shows the path.
func (w *walk) stageIn() {
	w.t.Helper()
	_, errs := w.run(1, "stage-in", "images.tar,oder=list:order.txt", "--dir", w.camp)
	w.says(errs, `option "oder" is not known`, "order", "replicas")
	_, errs = w.run(1, "stage-in", "image.tar", "--dir", w.camp)
	w.says(errs, w.home+"/image.tar", "no such file")
	_, errs = w.run(0, "stage-in", "images.tar,order=list:order.txt", "--dir", w.camp)
	w.says(errs, "bivouac: images: 60 files", "ready in", "$BIVOUAC_DATA/images")
	_, errs = w.run(1, "stage-in", "images.tar", "--dir", w.camp)
	w.says(errs, "images")
}

func (w *walk) train(exports string) {
	w.t.Helper()
	out, errs, status := w.command("sh", "-ec", exports+"; exec python3 -B train.py")
	if status != 0 {
		w.t.Fatalf("train.py: status %d: %s", status, errs)
	}
	w.says(out, "epoch 0: ", "epoch 1: 60 of 60 right, classes bright dark")
}

// look: the state of nodes and datasets, in a table without a terminal.
func (w *walk) look() {
	w.t.Helper()
	for _, command := range []string{"status", "top"} {
		out, _ := w.run(0, command, "--dir", w.camp)
		w.says(out, "2 nodes", "NODE", "STATE", "USED", "FREE", "READ LOCAL", "REMOTE", "SOURCE", "WRITTEN", "node0", "node1", "leader",
			"DATASET", "DONE", "FILES", "images", "ready", "100%", "60", w.home+"/images.tar")
		if strings.Contains(out, "\x1b") {
			w.t.Errorf("%s writes to a terminal where there is none: %q", command, out)
		}
	}
	out, _ := w.run(0, "status", "--dir", w.camp)
	w.says(out, "images is read in the order of its access plan list")
	_, errs := w.run(1, "wait", "pictures", "--dir", w.camp)
	w.says(errs, "pictures", "images")
}

// elsewhere matches references that make a page load something.
var elsewhere = regexp.MustCompile(`(?:src|href)="(?:https?:)?//|<link|@import`)

func (w *walk) report() {
	w.t.Helper()
	out, _ := w.run(0, "report", "--dir", w.camp)
	w.says(out, "bivouac report", "2 nodes", "dataset images from "+w.home+"/images.tar: ready", "source bytes read", "node0", "node1", "imbalance")
	w.run(0, "report", "--html", "report.html", "--dir", w.camp)
	page, err := os.ReadFile(filepath.Join(w.home, "report.html"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.says(string(page), "<title>", "<svg", "images", "node0", "node1")
	if m := elsewhere.Find(page); m != nil {
		w.t.Errorf("the page loads something: %s", m)
	}
}

// end: results are staged out, and down leaves nothing; a second down reports that.
func (w *walk) end() {
	w.t.Helper()
	w.run(0, "stage-out", "ckpt:"+filepath.Join(w.home, "results"), "--dir", w.camp)
	if b, err := os.ReadFile(filepath.Join(w.home, "results", "means")); err != nil || !bytes.Contains(b, []byte("bright")) {
		w.t.Errorf("the result is %q (%v)", b, err)
	}
	w.run(0, "down", "--dir", w.camp)
	if _, err := os.Stat(w.camp); !errors.Is(err, fs.ErrNotExist) {
		w.t.Errorf("%s is left: %v", w.camp, err)
	}
	_, errs := w.run(1, "down", "--dir", w.camp)
	w.says(errs, "nothing is up in "+w.camp)
}
