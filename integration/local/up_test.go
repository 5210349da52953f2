package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	deploy "github.com/bivouacfs/bivouac/deploy/local"
)

// TestUpDown: four nodes by default, one namespace, and down removes everything.
func TestUpDown(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	out := c.ok("up", "--dir", c.dir)
	for i := range 4 {
		if want := fmt.Sprintf("node%d\t%s/node%d\n", i, c.dir, i); !strings.Contains(out, want) {
			t.Errorf("up prints %q, want %q in it", out, want)
		}
	}
	if got := c.mounted(c.dir); len(got) != 4 {
		t.Errorf("mounted: %q, want 4", got)
	}
	write(t, c.node("0", "scratch", "f"), []byte("hello"))
	wantFile(t, c.node("3", "scratch", "f"), "hello")
	if got := names(t, c.node("1")); !slices.Equal(got, []string{".bivouac", "data", "scratch"}) {
		t.Errorf("the root of a mount has %q", got)
	}
	c.fails([]string{"already up", "end it with bivouac down --dir " + c.dir}, "up", "--dir", c.dir)
	wantFile(t, c.node("2", "scratch", "f"), "hello") // the first job is unharmed
	if r := c.run("down", "--dir", c.dir); r.status != 0 || r.out != "" || r.err != "" {
		t.Errorf("down: %+v, want no output", r)
	}
	c.gone(c.dir)
	c.fails([]string{"nothing is up in " + c.dir}, "down", "--dir", c.dir)
	c.ok("up", "--nodes", "1", "--dir", c.dir)
	if got := names(t, c.node("0", "scratch")); len(got) != 0 {
		t.Errorf("a new job has %q of the old", got)
	}
}

// TestUpJSON: --json prints the fields that programs need.
func TestUpJSON(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	var s deploy.State
	if err := json.Unmarshal([]byte(c.ok("up", "--json", "--nodes", "2", "--dir", c.dir)), &s); err != nil {
		t.Fatal(err)
	}
	if s.Dir != c.dir || len(s.Nodes) != 2 {
		t.Fatalf("up --json: %+v", s)
	}
	for i, n := range s.Nodes {
		want := fmt.Sprintf("node%d", i)
		if n.Host != want || n.Mount != filepath.Join(c.dir, want) {
			t.Errorf("node %d: %+v", i, n)
		}
		if err := syscall.Kill(n.PID, 0); err != nil {
			t.Errorf("process %d of %s: %v", n.PID, want, err)
		}
		if info, err := os.Stat(n.Sock); err != nil || info.Mode().Perm() != 0o600 || info.Mode().Type() != os.ModeSocket {
			t.Errorf("%s: %v, %v, want a socket of mode 0600", n.Sock, info, err)
		}
		if info, err := os.Stat(n.Log); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", n.Log, info, err)
		}
	}
}

// TestKeepsWhatIsNotIts: an existing directory stays, with its content.
func TestKeepsWhatIsNotIts(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	dir := mkdir(t, c.path("mine, with a space"))
	write(t, filepath.Join(dir, "notes"), []byte("mine"))
	if err := os.Symlink(dir, c.dir); err != nil { // a link to the directory also works
		t.Fatal(err)
	}
	c.ok("up", "--nodes", "1", "--dir", c.dir)
	if got := c.ok("status", "--dir", c.dir); !strings.Contains(got, filepath.Join(dir, "node0")) {
		t.Errorf("status: %s", got)
	}
	c.killAll()
	c.ok("down", "--dir", c.dir)
	if got := names(t, dir); !slices.Equal(got, []string{"notes"}) {
		t.Errorf("down leaves %q, want what was there", got)
	}
	if err := os.Remove(c.dir); err != nil {
		t.Fatal(err)
	}
}

// TestKilled: status reports a killed daemon; after everything was killed, down still removes all of it.
func TestKilled(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2")
	if err := syscall.Kill(c.state().Nodes[1].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "status names the dead daemon", func() bool {
		r := c.run("status", "--dir", c.dir)
		return r.status == 0 && strings.HasPrefix(r.err, "bivouac: the daemon of node1 has ended") && strings.Contains(r.err, "bivouac down --dir "+c.dir) &&
			strings.Count(r.err, "\n") == 1
	})
	c.killAll()
	eventually(t, "a dead mount is ENOTCONN", func() bool { // ECONNABORTED while the daemon ends
		_, err := os.ReadDir(c.node("0"))
		return errors.Is(err, syscall.ENOTCONN)
	})
	c.fails([]string{"all daemons of " + c.dir + " have ended", "bivouac down --dir " + c.dir}, "status", "--dir", c.dir)
	c.fails([]string{"bivouac down --dir " + c.dir}, "up", "--dir", c.dir)
	c.ok("down", "--dir", c.dir)
	c.gone(c.dir)
	c.fails([]string{"nothing is up in " + c.dir, "bivouac up --dir"}, "status", "--dir", c.dir)
}

// TestStaleMount: only the mounts of an earlier job are left.
func TestStaleMount(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2")
	c.killAll()
	if err := os.RemoveAll(filepath.Join(c.dir, ".bivouac")); err != nil {
		t.Fatal(err)
	}
	c.fails([]string{"still mounted by an earlier job", "bivouac down --dir " + c.dir}, "up", "--dir", c.dir)
	if got := names(t, c.dir); !slices.Equal(got, []string{"node0", "node1"}) {
		t.Errorf("a refused up leaves %q", got)
	}
	c.ok("down", "--dir", c.dir)
	if got := names(t, c.dir); len(got) != 0 {
		t.Errorf("down leaves %q", got)
	}
	c.ok("up", "--nodes", "1", "--dir", c.dir)
	c.ok("down", "--dir", c.dir)
	if err := os.Remove(c.dir); err != nil { // it existed before, so it stays
		t.Error(err)
	}
}

// TestBusyDown: open files and a stopped daemon do not keep a job from ending.
func TestBusyDown(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2")
	f, err := os.Create(c.node("0", "scratch", "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // its daemon has ended
	if err := syscall.Kill(c.state().Nodes[1].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.ok("down", "--dir", c.dir)
	c.gone(c.dir)
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("a file of a job that ended takes data")
	}
}

// TestUpRefuses: bad input costs one line and leaves nothing.
func TestUpRefuses(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	file := c.path("file")
	write(t, file, nil)
	long := c.path(strings.Repeat("x", 90))
	for _, x := range []struct {
		args []string
		want []string
	}{
		{[]string{"--nodes", "0", "--dir", c.dir}, []string{"--nodes 0: 1 to 4096"}},
		{[]string{"--nodes", "4097", "--dir", c.dir}, []string{"--nodes 4097: 1 to 4096"}},
		{[]string{"--nodes", "-1", "--dir", c.dir}, []string{"--nodes -1: 1 to 4096"}},
		{[]string{"--nodes", "two", "--dir", c.dir}, []string{`"two"`, "--nodes"}},
		{[]string{"--capacity", "1Q", "--dir", c.dir}, []string{"--capacity", "1Q"}},
		{[]string{"--rate", "fast", "--dir", c.dir}, []string{"--rate", "fast"}},
		{[]string{"--bogus", "--dir", c.dir}, []string{"--bogus"}},
		{[]string{"--dir", c.dir, "extra"}, []string{"extra"}},
		{nil, []string{`"dir" not set`}},
		{[]string{"--dir", ""}, []string{"--dir"}},
		{[]string{"--dir", file}, []string{file, "not a directory"}},
		{[]string{"--dir", file + "/job"}, []string{file, "not a directory"}},
		{[]string{"--dir", c.path("missing/job")}, []string{"no such file", "make " + c.path("missing") + " first"}},
		{[]string{"--dir", long}, []string{"too long for a socket", "choose a shorter --dir"}},
		{[]string{"--dir", c.dir + "\xff"}, []string{"UTF-8"}},
	} {
		c.fails(x.want, append([]string{"up"}, x.args...)...)
		if got := names(t, c.home); !slices.Equal(got, []string{"file"}) {
			t.Fatalf("up %q leaves %q", x.args, got)
		}
	}
}

// TestUpOnBadDisk: a directory that is full or read-only.
func TestUpOnBadDisk(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := newCamp(t)
	disk := c.path("disk")
	tmpfs(t, disk, "size=8m")
	dir := filepath.Join(disk, "job")
	fill(t, filepath.Join(disk, "ballast"))
	c.fails([]string{dir, "no space left on device", "choose another --dir"}, "up", "--dir", dir)
	c.gone(dir)
	readOnly(t, disk)
	c.fails([]string{dir, "read-only file system", "choose another --dir"}, "up", "--dir", dir)
	c.gone(dir)
}

// TestTwoJobs: concurrent jobs of one user are independent, and each ends alone.
func TestTwoJobs(t *testing.T) {
	t.Parallel()
	a, b := newCamp(t), newCamp(t)
	one, two := a.start("up", "--nodes", "3", "--dir", a.dir), b.start("up", "--nodes", "3", "--dir", b.dir)
	for _, r := range []result{a.finish(one), b.finish(two)} {
		if r.status != 0 {
			t.Fatal(r.err)
		}
	}
	write(t, a.node("0", "scratch", "whose"), []byte("a"))
	write(t, b.node("0", "scratch", "whose"), []byte("b"))
	for _, n := range []string{"0", "1", "2"} {
		wantFile(t, a.node(n, "scratch", "whose"), "a")
		wantFile(t, b.node(n, "scratch", "whose"), "b")
	}
	ports := make(map[string]bool)
	for _, n := range append(a.status("0").Nodes, b.status("0").Nodes...) {
		ports[n.Addr] = true
	}
	if len(ports) != 6 {
		t.Errorf("addresses: %v, want 6", ports)
	}
	a.ok("down", "--dir", a.dir)
	a.gone(a.dir)
	wantFile(t, b.node("2", "scratch", "whose"), "b")
	for _, n := range b.status("1").Nodes {
		if n.State.String() != "up" {
			t.Errorf("%s of the other job is %v", n.Host, n.State)
		}
	}
}

// TestTwoUps: of several concurrent ups on one directory, one makes the job.
func TestTwoUps(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	results := make([]result, 4)
	var wg sync.WaitGroup
	for i := range results {
		r := c.start("up", "--nodes", "1", "--dir", c.dir)
		wg.Go(func() { results[i] = c.finish(r) })
	}
	wg.Wait()
	up := 0
	for _, r := range results {
		if r.status == 0 {
			up++
			continue
		}
		c.failed(r, c.dir)
	}
	if up != 1 {
		t.Errorf("%d of %d ups made the job: %+v", up, len(results), results)
	}
	write(t, c.node("0", "scratch", "f"), []byte("works"))
}
