package local

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	deploy "github.com/bivouacfs/bivouac/deploy/local"
	"github.com/bivouacfs/bivouac/deploy/mounts"
)

// viewed pitches a job, stages small files in, and waits until all nodes have their kernel view. It returns the
// source.
func viewed(t *testing.T, n string) (c *camp, src string) {
	t.Helper()
	needRoot(t)
	needViews(t)
	c = pitch(t, n)
	src = mkdir(t, filepath.Join(c.home, "small"))
	for i := range 40 {
		write(t, filepath.Join(src, fmt.Sprintf("%02d", i)), smallFile(i))
	}
	c.ok("stage-in", src, "--dir", c.dir)
	c.awaitViews("small", n)
	return c, src
}

func smallFile(i int) []byte { return []byte(strings.Repeat(fmt.Sprint(i), 3000)) }

// needViews skips the test if the kernel does not support views.
func needViews(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		t.Fatal(err)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil || major < 6 || major == 6 && minor < 5 ||
		!strings.Contains(string(b), "\terofs\n") || !strings.Contains(string(b), "\toverlay\n") {
		t.Skip("needs Linux 6.5 with EROFS, overlayfs and loop devices")
	}
}

func (c *camp) awaitViews(name, nodes string) {
	c.t.Helper()
	eventually(c.t, "the dataset has its views", func() bool { return fmt.Sprint(c.views(name)) == nodes })
}

// views returns how many nodes have a kernel view of a dataset.
func (c *camp) views(name string) (n int) {
	c.t.Helper()
	for i := range c.state().Nodes {
		at, err := mounts.At(c.node(fmt.Sprint(i), "data", name))
		if err != nil {
			c.t.Fatal(err)
		}
		if len(at) > 0 && at[len(at)-1].FSType == mounts.OverlayType {
			n++
		}
	}
	return n
}

// loops returns the loop devices whose file is below the camp.
func (c *camp) loops() (left []string) {
	c.t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(b), c.home) {
			left = append(left, f)
		}
	}
	return left
}

// struck ends the job and checks that nothing is left, including loop devices.
func (c *camp) struck() {
	c.t.Helper()
	c.down()
	eventually(c.t, "the loop devices are gone", func() bool { return len(c.loops()) == 0 })
}

// TestView: a dataset of small files gets a kernel view on every node, which equals the source in all respects,
// wherever the bytes are; with views disabled, it has a cover.
func TestView(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needViews(t)
	c := pitch(t, "3")
	src := c.path("src")
	makeTree(t, src)
	if err := os.Remove(filepath.Join(src, "big")); err != nil { // small mean file size, so that the dataset gets views
		t.Fatal(err)
	}
	many := mkdir(t, filepath.Join(src, "many"))
	for i := range 60 {
		write(t, filepath.Join(many, fmt.Sprintf("%02d", i)), smallFile(i))
	}
	write(t, filepath.Join(src, "\xff\xfe "+strings.Repeat("n", 250)), []byte("odd"))
	write(t, filepath.Join(src, "without bytes"), nil)
	setTimes(t, src)
	want := describe(t, src, true)
	c.stageIn("src")
	c.awaitViews("src", "3")
	for _, n := range []string{"0", "1", "2"} {
		at := c.node(n, "data", "src")
		wantSame(t, "the view on node "+n, describe(t, at, true), want)
		for i := range 60 {
			wantFile(t, filepath.Join(at, "many", fmt.Sprintf("%02d", i)), string(smallFile(i)))
		}
		if err := os.WriteFile(filepath.Join(at, "new"), nil, 0o644); !strings.Contains(fmt.Sprint(err), syscall.EROFS.Error()) {
			t.Errorf("a new file in a dataset: %v", err)
		}
	}
	mapped(t, c.node("1", "data", "src", "many", "07"), string(smallFile(7)))
	hosts := map[string]bool{}
	for i := range 60 {
		host, _, _ := strings.Cut(c.ok("locate", c.node("0", "data", "src", "many", fmt.Sprintf("%02d", i))), "\t")
		hosts[host] = true
	}
	if len(hosts) != 3 {
		t.Errorf("the files are on %v", hosts)
	}
	c.struck()
}

// TestViewOfOption: a dataset whose name looks like an option has a view, and no cover.
func TestViewOfOption(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needViews(t)
	c := pitch(t, "2")
	c.ok("stage-in", c.smallTree("plain", 20, 3000)+":-x", "--dir", c.dir)
	c.awaitViews("-x", "2")
	c.wantTree("-x", 20, 3000)
	if n := c.said("mounted a cover over the dataset"); n != 0 {
		t.Errorf("%d covers below views", n)
	}
	c.struck()
}

// TestViewOff: with views switched off, datasets have covers.
func TestViewOff(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := newCamp(t)
	c.fails([]string{"--kernel-view", "auto or off"}, "up", "--dir", c.dir, "--kernel-view", "yes")
	c.ok("up", "--nodes", "2", "--dir", c.dir, "--kernel-view", "off")
	stageSmall(t, c)
	c.settled()
	if n := c.views("small"); n != 0 || c.said("kernel view") != 0 {
		t.Errorf("%d views that nobody wants", n)
	}
}

// TestViewInUse: a process that uses a view does not block the end of the job, and can still read this node's files
// that it has open.
func TestViewInUse(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		c, _ := viewed(t, "2")
		dir, err := os.Open(c.node("0", "data", "small"))
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(c.node("1", "data", "small", "03"))
		if err != nil {
			t.Fatal(err)
		}
		if kill {
			c.killAll()
		}
		c.ok("down", "--dir", c.dir)
		c.gone(c.dir)
		b := make([]byte, 3000)
		if _, err := f.ReadAt(b, 0); err == nil && string(b) != string(smallFile(3)) {
			t.Error("an open file has other bytes after the job")
		}
		_, _ = dir.Close(), f.Close() // read only
		eventually(t, "the loop devices are gone", func() bool { return len(c.loops()) == 0 })
	}
}

// TestViewKilled: after all processes were killed, down removes the views, too.
func TestViewKilled(t *testing.T) {
	t.Parallel()
	c, _ := viewed(t, "2")
	c.killAll()
	c.struck()
}

// TestViewNodeLost: a lost node's files are read from the source, through the views that existed before.
func TestViewNodeLost(t *testing.T) {
	t.Parallel()
	c, _ := viewed(t, "3")
	n := c.state().Nodes[2]
	if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		for _, node := range []string{"0", "1"} {
			wantFile(t, c.node(node, "data", "small", fmt.Sprintf("%02d", i)), string(smallFile(i)))
		}
	}
	if n := c.views("small"); n < 2 {
		t.Errorf("%d views on the nodes that are left, want 2", n)
	}
	c.struck()
}

// TestViewMended: a bit that flips on the disk is repaired below the view, also for processes that have read the file
// before. If it cannot be repaired the view is removed, since the kernel would read the bad bytes.
func TestViewMended(t *testing.T) {
	t.Parallel()
	c, src := viewed(t, "2")
	read := func(i int) error {
		var errs []string
		for _, node := range []string{"0", "1"} {
			b, err := os.ReadFile(c.node(node, "data", "small", fmt.Sprintf("%02d", i)))
			if err != nil || string(b) != string(smallFile(i)) {
				errs = append(errs, fmt.Sprintf("node %s: %d bytes, %v", node, len(b), err))
			}
		}
		if errs != nil {
			return fmt.Errorf("file %d: %q", i, errs)
		}
		return nil
	}
	if err := read(5); err != nil {
		t.Fatal(err)
	}
	c.flip("small/05", 17)
	if read(5) == nil {
		t.Error("a flipped bit in an object was not detected") // the checks below prove nothing without it
	}
	if r := c.run("verify", "--dir", c.dir); r.status != 0 || !strings.Contains(r.err, "1 repaired") {
		t.Errorf("verify: status %d:\n%s", r.status, r.err)
	}
	if err := read(5); err != nil {
		t.Errorf("after it was mended: %v", err)
	}
	c.awaitViews("small", "2")
	node := c.flip("small/06", 17)
	if err := os.Remove(filepath.Join(src, "06")); err != nil {
		t.Fatal(err)
	}
	if r := c.run("verify", "--dir", c.dir); r.status != 1 {
		t.Errorf("verify of what cannot be mended: status %d:\n%s", r.status, r.err)
	}
	c.awaitViews("small", "2") // rebuilt without that file
	if at := slices.IndexFunc(c.state().Nodes, func(n deploy.Node) bool { return n.Host == node }); at >= 0 {
		if b, err := os.ReadFile(c.node(fmt.Sprint(at), "data", "small", "06")); err == nil && string(b) != string(smallFile(6)) {
			t.Error("what is known to be bad is read")
		}
	}
	if err := read(7); err != nil {
		t.Error(err)
	}
	c.struck()
}
