package pitch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fillers is the number of a user's threads that create files where wipe removes them.
const fillers = 8

// fillDir creates files, and directories with files, in the directory that is descriptor 3, until it is killed. It
// prints a line when it has begun.
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

// TestWipeEnds: a user whose processes create files in the directory as fast as they can, from another job on this
// node, cannot prevent its removal.
func TestWipeEnds(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp("", "wipe") // a test's own directory is accessible to root only
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	top := filepath.Join(dir, "top")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(top, 0o777), os.Chmod(top, 0o777), os.Chown(top, keeperUID, keeperUID)); err != nil {
		t.Fatal(err)
	}
	defer asUser(t, "filldir", top)()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := wipe(ctx, top); err != nil || exists(top) {
		t.Errorf("wipe = %v", err)
	}
}
