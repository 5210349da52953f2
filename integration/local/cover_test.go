package local

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// stageSmall stages a dataset of small files, and waits until both nodes have
// its cover.
func stageSmall(t *testing.T, c *camp) {
	t.Helper()
	src := mkdir(t, filepath.Join(c.home, "small"))
	for i := range 20 {
		write(t, filepath.Join(src, fmt.Sprintf("%02d", i)), []byte(strings.Repeat(fmt.Sprint(i), 3000)))
	}
	c.ok("stage-in", src, "--dir", c.dir)
	c.covered("small")
}

// TestCover: a dataset of small files has a connection of its own, a large one
// has none, and both are read, also through mappings.
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

// mapped reads a file through a mapping.
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

// TestCoverInUse: who uses a cover does not keep the job from going.
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

// TestCoverKilled: everything was killed; down finds the covers, too.
func TestCoverKilled(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := pitch(t, "2", "--kernel-view", "off")
	stageSmall(t, c)
	wantFile(t, c.node("0", "data", "small", "05"), strings.Repeat("5", 3000))
	c.killAll()
	c.ok("down", "--dir", c.dir)
	c.gone(c.dir)
}
