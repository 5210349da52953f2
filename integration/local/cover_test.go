package local

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
)

// stageSmall stages a dataset of small files, and waits until both nodes have mounted its cover.
func stageSmall(t *testing.T, c *camp) {
	t.Helper()
	src := mkdir(t, filepath.Join(c.home, "small"))
	for i := range 20 {
		write(t, filepath.Join(src, fmt.Sprintf("%02d", i)), []byte(strings.Repeat(fmt.Sprint(i), 3000)))
	}
	c.ok("stage-in", src, "--dir", c.dir)
	c.covered("small")
}

// TestCover: a dataset of small files has its own FUSE connection, a large one does not, and both are readable, also
// through mappings.
func TestCover(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := pitch(t, "2", "--kernel-view", "off")
	stageSmall(t, c)
	write(t, filepath.Join(mkdir(t, filepath.Join(c.home, "large")), "f"), make([]byte, 3<<20))
	c.ok("stage-in", filepath.Join(c.home, "large"), "--dir", c.dir)
	for _, n := range []string{"0", "1"} {
		for i := range 20 {
			wantFile(t, c.node(n, "data", "small", fmt.Sprintf("%02d", i)), strings.Repeat(fmt.Sprint(i), 3000))
		}
		wantFile(t, c.node(n, "data", "large", "f"), string(make([]byte, 3<<20)))
		if slices.Contains(c.mounted(c.dir), c.node(n, "data", "large")) {
			t.Error("the large dataset is covered")
		}
		if err := os.WriteFile(c.node(n, "data", "small", "new"), nil, 0o644); err == nil || !strings.Contains(err.Error(), syscall.EROFS.Error()) {
			t.Errorf("a new file in a dataset: %v", err)
		}
	}
	mapped(t, c.node("1", "data", "small", "07"), strings.Repeat("7", 3000))
	c.ok("down", "--dir", c.dir)
	c.gone(c.dir)
}

// mapped checks a file read through a mapping.
func mapped(t *testing.T, path, want string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	if string(b) != want {
		t.Error("the mapping has other bytes")
	}
}

// stageSlowly starts to stage a dataset of n files in several directories, and waits until both nodes have its cover.
func stageSlowly(t *testing.T, c *camp, dirs, n int) {
	t.Helper()
	src := mkdir(t, c.path("slow"))
	for i := range n {
		dir := filepath.Join(src, fmt.Sprint("dir", i%dirs))
		if i < dirs {
			mkdir(t, dir)
		}
		write(t, filepath.Join(dir, fmt.Sprintf("%03d", i)), slowly(i))
	}
	c.ok("stage-in", "--background", src, "--dir", c.dir)
	c.covered("slow")
}

const slowRate = "100K" // bytes a second of each node: the files of stageSlowly take some seconds

// slowly returns the content of file i of stageSlowly.
func slowly(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 4000) }

// TestCoverPrefetch: the kernel or the daemon has most of a reader's data before its reads if it reads in fill order.
func TestCoverPrefetch(t *testing.T) {
	t.Parallel()
	needRoot(t)
	const files, nodes = 300, 2
	c := pitch(t, "2", "--kernel-view", "off", "--rate", slowRate)
	src := mkdir(t, c.path("slow"))
	order := make([]string, files)
	for turn, i := range rand.New(rand.NewPCG(1, 2)).Perm(files) {
		order[turn] = fmt.Sprintf("%03d", i)
		write(t, filepath.Join(src, order[turn]), slowly(i))
	}
	write(t, c.path("order"), []byte(strings.Join(order, "\n")))
	c.ok("stage-in", "--background", src+",order=list:"+c.path("order"), "--dir", c.dir)
	c.covered("slow")
	pace := time.NewTicker(60 * time.Millisecond)
	defer pace.Stop()
	for turn, staged := 0, 0; turn < files; turn += nodes { // behind the fill, on any machine
		<-pace.C
		eventually(t, "the next files are staged", func() bool {
			if want := min(turn+10, files); staged < want {
				staged = c.staged("slow", files)
			}
			return staged >= min(turn+10, files)
		})
		i, err := strconv.Atoi(order[turn])
		if err != nil {
			t.Fatal(err)
		}
		wantFile(t, c.node("1", "data", "slow", order[turn]), string(slowly(i)))
	}
	const remote = files / nodes / nodes // average number of files that node 1 reads and node 0 has
	ahead, calls := c.metric("1", "bivouac_prefetched_files_total"), c.metric("0", `bivouac_rpc_requests_total{op="read"}`)
	if ahead < files/nodes/3 || calls > remote*2/3 {
		t.Errorf("of %d files that a node reads %v were prefetched; it has read %v of the %d of the other node one by one", files/nodes, ahead, calls, remote)
	}
	if n := c.metric("0", "bivouac_prefetched_files_total"); n != 0 {
		t.Errorf("%v files were prefetched on a node without a reader, want 0", n)
	}
}

// staged returns how many files of stageSlowly's size are on the nodes, out of all.
func (c *camp) staged(name string, all int) int {
	c.t.Helper()
	p := c.dataset(name).Progress
	if p == nil { // the dataset is ready
		return all
	}
	return int(p.Bytes) / len(slowly(0))
}

// metric returns the value of a node's metric.
func (c *camp) metric(node, name string) (n float64) {
	c.t.Helper()
	name += " "
	i, err := strconv.Atoi(node)
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := daemon.NewCtl(c.state().Nodes[i].Sock).Metrics(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	at := strings.Index(text, "\n"+name)
	if at < 0 {
		c.t.Fatalf("no %s in the metrics", name)
	}
	if _, err := fmt.Sscan(text[at+1+len(name):], &n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// TestCoverInUse: a process that uses a cover does not block the end of the job.
func TestCoverInUse(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for _, kill := range []bool{false, true} {
		c := pitch(t, "2", "--kernel-view", "off")
		stageSmall(t, c)
		user := exec.Command("sleep", "1000")
		user.Dir = c.node("0", "data", "small")
		if err := user.Start(); err != nil {
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
		if _, err := f.ReadAt(make([]byte, 10), 0); err == nil {
			t.Error("a file of a job that is gone is read")
		}
		_ = f.Close()
		_ = user.Process.Kill()
		_ = user.Wait() // it was killed
	}
}

// TestCoverKilled: after all processes were killed, down removes the covers, too.
func TestCoverKilled(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := pitch(t, "2", "--kernel-view", "off", "--rate", slowRate)
	stageSlowly(t, c, 1, 400)
	wantFile(t, c.node("0", "data", "slow", "dir0", "005"), string(slowly(5)))
	c.killAll()
	c.ok("down", "--dir", c.dir)
	c.gone(c.dir)
}
