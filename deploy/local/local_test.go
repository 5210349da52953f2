package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestDownOfNothing: down reports that nothing is up, even if the directory does not exist.
func TestDownOfNothing(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Join(dir, "missing")} {
		if _, err := Down(d); !errors.Is(err, ErrNothing) || !strings.Contains(err.Error(), d) {
			t.Errorf("Down(%s): %v", d, err)
		}
	}
}

// TestDead: daemons that started and then exited are dead; ones about to start, or with an invisible process, are not.
func TestDead(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "listens"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	was, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "was killed"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	was.SetUnlinkOnClose(false)
	_ = was.Close()
	me := os.Getpid()
	s := State{Nodes: []Node{
		{Host: "starts"}, {Host: "lives", PID: me, Start: startTime(me), Sock: was.Addr().String()}, {Host: "elsewhere", PID: me, Start: "1", Sock: l.Addr().String()},
		{Host: "killed", PID: me, Start: "1", Sock: was.Addr().String()}, {Host: "failed", PID: me, Start: "1", Sock: filepath.Join(dir, "none")},
	}}
	var got []string
	for _, n := range s.Dead() {
		got = append(got, n.Host)
	}
	if want := []string{"killed", "failed"}; !slices.Equal(got, want) {
		t.Errorf("dead are %q, want %q", got, want)
	}
}

// TestUsersOf: exactly the processes that work below a mount are listed.
func TestUsersOf(t *testing.T) {
	dir := t.TempDir()
	if got := usersOf([]string{dir}); len(got) != 0 {
		t.Errorf("users of a directory that is not used: %q", got)
	}
	c := exec.Command("sleep", "60")
	c.Dir = dir
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	want := fmt.Sprintf("process %d (sleep)", c.Process.Pid)
	if got := usersOf([]string{dir + "x", dir}); !slices.Equal(got, []string{want}) {
		t.Errorf("users: %q, want %q", got, want)
	}
}

// TestFailedUp: a daemon that does not start leaves no files or processes, and the error says where to look.
func TestFailedUp(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	dir := filepath.Join(t.TempDir(), "job")
	_, err := Up(context.Background(), Config{Dir: dir, Nodes: 2, Program: "/bin/false"})
	if err == nil || !strings.Contains(err.Error(), "ended while it started") {
		t.Errorf("Up of a program that fails: %v", err)
	}
	if exists(dir) {
		t.Errorf("%s is left", dir)
	}
}

// TestSecondUp: a directory in use is refused, with what to do about it.
func TestSecondUp(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	dir := t.TempDir()
	_, unlock, err := claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Up(context.Background(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "another bivouac up") {
		t.Errorf("Up beside an up: %v", err)
	}
	unlock()
	if _, err := Up(context.Background(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "bivouac down --dir") {
		t.Errorf("Up after an up: %v", err)
	}
	if _, err := Down(dir); err != nil {
		t.Fatal(err)
	}
	if exists(hidden(dir)) {
		t.Error("down has left something")
	}
}

// TestDirOfAnother: a directory created by another up, which did not get the job, is removed together with the job.
func TestDirOfAnother(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "job")
	if err := makeDirs(dir); err != nil {
		t.Fatal(err)
	}
	_, unlock, err := claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if _, err := Down(dir); err != nil {
		t.Fatal(err)
	}
	if exists(dir) {
		t.Errorf("%s is left", dir)
	}
}

// TestAlive: a process is not identified by its process ID alone.
func TestAlive(t *testing.T) {
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	n := Node{PID: c.Process.Pid, Start: startTime(c.Process.Pid)}
	if !n.alive() || (Node{PID: n.PID, Start: "1"}).alive() || (Node{}).alive() {
		t.Error("alive does not tell a process from its number")
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if n.alive() {
		t.Error("a process that ended is alive")
	}
}

// TestCheckNodes: impossible numbers of nodes are refused, and so are numbers for which there is no memory.
func TestCheckNodes(t *testing.T) {
	for _, n := range []int{-1, 0, maxNodes + 1} {
		if err := CheckNodes(n); err == nil {
			t.Errorf("%d nodes are accepted", n)
		}
	}
	if err := CheckNodes(fewNodes); err != nil {
		t.Errorf("%d nodes: %v", fewNodes, err)
	}
	file := filepath.Join(t.TempDir(), "meminfo")
	text := "MemTotal: 9 kB\nMemFree: 8 kB\nMemAvailable:    4194304 kB\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := roomForNodes(64, file); err != nil {
		t.Errorf("64 nodes with 4 GiB: %v", err)
	}
	if err := roomForNodes(65, file); !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "choose fewer nodes") {
		t.Errorf("65 nodes with 4 GiB: %v", err)
	}
	if err := roomForNodes(maxNodes, file+"x"); err != nil {
		t.Errorf("without meminfo: %v", err)
	}
}
