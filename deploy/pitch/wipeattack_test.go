package pitch

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fillers is how many threads of a user make files where wipe removes them.
const fillers = 8

// fillDir makes files, and directories with files, in the directory that is descriptor 3,
// until it is killed. A line says that it has begun.
func fillDir() int {
	for i := range fillers {
		go func() {
			for n := 0; ; n++ {
				name := strconv.Itoa(i) + "-" + strconv.Itoa(n)
				if unix.Mkdirat(3, name, 0o777) == nil {
					fd, err := unix.Openat(3, name+"/f", unix.O_CREAT|unix.O_WRONLY, 0o600)
					if err == nil {
						_ = unix.Close(fd)
					}
				}
				if n == 0 && i == 0 {
					_, _ = os.Stdout.WriteString("begun\n")
				}
			}
		}()
	}
	select {}
}

// TestWipeEnds: a user whose processes make files in the directory as fast as they can,
// because he has another job on this node, does not keep it from being removed.
func TestWipeEnds(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp("", "wipe") // that of a test is root's alone
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	top := filepath.Join(dir, "top")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(top, 0o777), os.Chmod(top, 0o777), os.Chown(top, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	cmd := exec.Command("/proc/self/exe", "filldir")
	cmd.ExtraFiles = []*os.File{open}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := wipe(ctx, top); err != nil || exists(top) {
		t.Errorf("wipe = %v", err)
	}
}
