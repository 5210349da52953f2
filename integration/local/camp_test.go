// Package local holds the acceptance tests of bivouac without Slurm: each runs the program as a user types it, and
// checks its output, its exit status, the mounts, and the leftovers: no mount, no process, no directory. Its one idea
// is that every failure ends in one clear line.
//
// It needs /dev/fuse; tests that need root or a setuid fusermount3 skip without.
package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	deploy "github.com/bivouacfs/bivouac/deploy/local"
	"github.com/bivouacfs/bivouac/integration/netcluster"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// patience bounds the wait for an end; it is no measure of speed.
const patience = 2 * time.Minute

// camp is a place for a job, and how its user runs the program.
type camp struct {
	t      *testing.T
	bin    string
	home   string   // the test's own directory
	dir    string   // the job's directory, below home; not made
	prefix []string // precedes every command
	mounts string   // the mountinfo file of those commands
}

// newCamp makes a camp that is struck at the end of the test, and checks for leftovers.
func newCamp(t *testing.T) *camp {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	home, err := os.MkdirTemp("", "camp") // short, as socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	c := &camp{t: t, bin: netcluster.Binary(t), home: home, dir: filepath.Join(home, "job"), mounts: "/proc/self/mountinfo"}
	t.Cleanup(func() {
		c.down()
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	return c
}

// pitch makes a camp with a running job of n nodes.
func pitch(t *testing.T, n string, args ...string) *camp {
	t.Helper()
	c := newCamp(t)
	c.ok(append([]string{"up", "--nodes", n, "--dir", c.dir}, args...)...)
	return c
}

// path returns a path in the home of the camp.
func (c *camp) path(elem ...string) string {
	return filepath.Join(append([]string{c.home}, elem...)...)
}

// node returns a path in the mount of node i, such as node("2", "scratch", "f").
func (c *camp) node(i string, elem ...string) string {
	return filepath.Join(append([]string{c.dir, "node" + i}, elem...)...)
}

// result is the outcome of a command.
type result struct {
	out, err string
	status   int
}

func (c *camp) command(args ...string) *exec.Cmd {
	args = slices.Concat(c.prefix, []string{c.bin}, args)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "SLURM_") })
	cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+c.path("cache"))
	cmd.Dir = c.home
	return cmd
}

func (c *camp) run(args ...string) result {
	c.t.Helper()
	return c.finish(c.start(args...))
}

// running is a started command.
type running struct {
	*exec.Cmd
	out, err bytes.Buffer
}

func (c *camp) start(args ...string) *running {
	c.t.Helper()
	r := &running{Cmd: c.command(args...)}
	r.Stdout, r.Stderr = &r.out, &r.err
	if err := r.Start(); err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *camp) finish(r *running) result {
	c.t.Helper()
	watch := time.AfterFunc(patience, func() { _ = r.Process.Kill() })
	err := r.Wait()
	if !watch.Stop() {
		c.t.Errorf("%v: not over after %v", r.Args, patience)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	return result{r.out.String(), r.err.String(), r.ProcessState.ExitCode()}
}

// ok runs a command that must succeed, and returns its output.
func (c *camp) ok(args ...string) string {
	c.t.Helper()
	r := c.run(args...)
	if r.status != 0 {
		c.t.Fatalf("bivouac %q: status %d:\n%s", args, r.status, r.err)
	}
	return r.out
}

// fails runs a command that must end with status 1 and one line that contains all of want; progress lines may precede
// it.
func (c *camp) fails(want []string, args ...string) {
	c.t.Helper()
	c.failed(c.run(args...), want...)
}

func (c *camp) failed(r result, want ...string) {
	c.t.Helper()
	lines := strings.Split(strings.TrimSuffix(r.err, "\n"), "\n")
	last := lines[len(lines)-1]
	if r.status != 1 || !strings.HasPrefix(last, "bivouac: ") || r.out != "" {
		c.t.Errorf("status %d, output %q, errors:\n%s\nwant status 1 and a line of bivouac", r.status, r.out, r.err)
	}
	for _, w := range want {
		if !strings.Contains(last, w) {
			c.t.Errorf("the error is %q, want %q in it", last, w)
		}
	}
	for _, l := range lines[:len(lines)-1] {
		if !progressLine.MatchString(l) {
			c.t.Errorf("beside the error there is %q", l)
		}
	}
}

// progressLine matches the lines that a wait may print before it ends.
var progressLine = regexp.MustCompile(`^bivouac: [^:]+: (scanning |.*(ETA |finishing|distributing the manifest|; fetching the files|ready in ))`)

// down ends the job, if one runs, and checks that nothing is left.
func (c *camp) down() {
	c.t.Helper()
	if r := c.run("down", "--dir", c.dir); r.status != 0 && !strings.Contains(r.err, "nothing is up in "+c.dir) {
		c.t.Errorf("down: status %d:\n%s", r.status, r.err)
	}
	c.gone(c.dir)
}

// gone checks that nothing is left of a job in dir.
func (c *camp) gone(dir string) {
	c.t.Helper()
	if left := c.mounted(dir); len(left) > 0 {
		c.t.Errorf("still mounted: %q", left)
	}
	if left := processes(c.t, dir); len(left) > 0 {
		c.t.Errorf("still running: %q", left)
	}
	if left, err := os.ReadDir(dir); !errors.Is(err, os.ErrNotExist) {
		c.t.Errorf("%s is left: %v (%v)", dir, left, err)
	}
}

// mounted returns the mountpoints below dir.
func (c *camp) mounted(dir string) []string {
	c.t.Helper()
	b, err := os.ReadFile(c.mounts)
	if err != nil {
		c.t.Fatal(err)
	}
	var left []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			left = append(left, f[4])
		}
	}
	return left
}

// processes returns the command lines that contain dir.
func processes(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, f := range files {
		b, _ := os.ReadFile(f) // it may have ended
		if bytes.Contains(b, []byte(dir+"/")) {
			left = append(left, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return left
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// state returns the state that up saved.
func (c *camp) state() *deploy.State {
	c.t.Helper()
	s, err := deploy.Load(c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// killAll kills all daemons with SIGKILL and waits until they have ended.
func (c *camp) killAll() {
	c.t.Helper()
	for _, n := range c.state().Nodes {
		if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			c.t.Fatal(err)
		}
	}
	eventually(c.t, "the daemons are dead", func() bool { return len(processes(c.t, c.dir)) == 0 })
}

// status returns the status of node i, from its JSON.
func (c *camp) status(i string) daemon.Status {
	c.t.Helper()
	var s daemon.Status
	if err := json.Unmarshal([]byte(c.ok("status", "--json", "--dir", c.dir, "--node", i)), &s); err != nil {
		c.t.Fatal(err)
	}
	return s
}

// stageIn runs a stage-in that must succeed. Other nodes may learn of the dataset a moment after the program has
// ended.
func (c *camp) stageIn(spec string) {
	c.t.Helper()
	c.ok("stage-in", spec, "--dir", c.dir)
	c.settled()
}

// settled waits until all nodes know the state of node 0, and nothing is in progress.
func (c *camp) settled() {
	c.t.Helper()
	want := len(c.status("0").Datasets)
	for i := range c.state().Nodes {
		eventually(c.t, "all nodes know of the datasets", func() bool {
			ds := c.status(strconv.Itoa(i)).Datasets
			return len(ds) == want && !slices.ContainsFunc(ds, func(d daemon.DatasetStatus) bool {
				return d.Phase != cluster.Sealed && !d.Phase.Ended()
			})
		})
	}
}

// dataset returns the newest dataset with this name.
func (c *camp) dataset(name string) daemon.DatasetStatus {
	c.t.Helper()
	ds := c.status("0").Datasets
	for i := len(ds) - 1; i >= 0; i-- {
		if ds[i].Name == name {
			return ds[i]
		}
	}
	c.t.Fatalf("no dataset %q", name)
	return daemon.DatasetStatus{}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount and to be somebody else")
	}
}

// tmpfs makes a directory at path and mounts a filesystem with these options on it.
func tmpfs(t *testing.T, path, options string) {
	t.Helper()
	needRoot(t)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// readOnly makes the filesystem that tmpfs mounted at path read-only.
func readOnly(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mount("", path, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// fill writes to path until its filesystem is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	if _, err := io.Copy(f, zero); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%s: %v, want ENOSPC", path, err)
	}
}

func wantFile(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	} else if string(got) != want {
		t.Errorf("%s has %d bytes that are not the %d wanted", path, len(got), len(want))
	}
}

// names returns the names in a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, e := range entries {
		s = append(s, e.Name())
	}
	return s
}

// sh runs a script that must succeed.
func sh(t *testing.T, script string, args ...string) string {
	t.Helper()
	out, err := exec.Command("bash", append([]string{"-euc", script, "sh"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}
