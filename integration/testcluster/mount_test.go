package testcluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestMount: data written through one node's mount is read through all others, and a killed node's mount returns an
// error instead of hanging.
func TestMount(t *testing.T) {
	t.Parallel()
	NeedFUSE(t)
	c := Start(t, Config{})
	ms := c.Mount(t)
	if err := os.WriteFile(filepath.Join(ms[0].Scratch, "f"), []byte("of node 0"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		if b, err := os.ReadFile(filepath.Join(m.Scratch, "f")); string(b) != "of node 0" {
			t.Errorf("node %d: %q, %v", m.Node, b, err)
		}
	}
	f, err := os.Open(filepath.Join(ms[3].Scratch, "f"))
	if err != nil {
		t.Fatal(err)
	}
	c.Kill(t, 3)
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("a read through the mount of a killed node = %v", err)
	}
	_ = f.Close() // ENOTCONN
	c.Revive(t, 3)
	again := c.Mount(t, 3)
	Eventually(t, "the revived node has joined", func() bool {
		b, err := os.ReadFile(filepath.Join(again[0].Scratch, "f"))
		return err == nil && string(b) == "of node 0"
	})
}

// TestMountOfKilledProcess: a process that is killed while one of its threads waits for its own mount leaves no mount
// and no process.
func TestMountOfKilledProcess(t *testing.T) {
	if os.Getenv(killed) != "" {
		killedHelper(t)
		return
	}
	NeedFUSE(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestMountOfKilledProcess$")
	cmd.Env = append(os.Environ(), killed+"="+t.TempDir())
	out, err := cmd.Output()
	if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || st.Signal() != syscall.SIGKILL {
		t.Fatalf("helper: %v: %s", err, out)
	}
	dir, _, _ := strings.Cut(string(out), "\n")
	Eventually(t, "the mount at "+dir+" is gone", func() bool {
		b, err := os.ReadFile("/proc/self/mounts")
		return err == nil && dir != "" && !strings.Contains(string(b), dir)
	})
}

const killed = "BIVOUAC_TEST_KILLED" // the helper's temporary directory

// killedHelper kills itself while a read of its mount hangs.
func killedHelper(t *testing.T) {
	t.Setenv("TMPDIR", os.Getenv(killed))
	c := Start(t, Config{Nodes: 2})
	m := c.Mount(t, 0)[0]
	path := filepath.Join(m.Scratch, "f")
	if err := os.WriteFile(path, make([]byte, 3<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString(m.Dir() + "\n")
	for range 8 {
		go func() {
			for {
				if _, err := os.ReadFile(path); err != nil {
					return
				}
			}
		}()
	}
	_, _ = os.ReadFile(path)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
