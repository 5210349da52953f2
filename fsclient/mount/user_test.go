package mount_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const user = 4242 // the job's user, where it is not root

// as runs a shell command as another user.
func as(uid uint32, dir, command string) (string, error) {
	c := exec.Command("/bin/sh", "-c", command)
	c.Dir = "/"
	c.Env = []string{"PATH=/usr/bin:/bin", "D=" + dir}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := c.CombinedOutput()
	return string(out), err
}

// TestUser: files of the job's user belong to that user; other users have no access.
func TestUser(t *testing.T) {
	j := newJobOf(t, user)
	for p := j.dirs[0]; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		if p != j.dirs[0] {
			check(t, os.Chmod(p, 0o755))
		}
	}
	out, err := as(user, j.scratch(0), `cd $D && mkdir -m 2755 d e f && echo x >d/f && chmod 6777 d/f && ln -s f d/s && mkfifo d/p && echo y >>d/f`)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"d", "e", "f", "d/f", "d/s", "d/p"} {
		if st := stat(t, j.scratch(1, name)); st.Uid != user || st.Gid != user {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
	}
	if st := stat(t, j.scratch(1, "d/f")); st.Mode != syscall.S_IFREG|0o777 {
		t.Errorf("mode %o after a write by the user, want no setuid and setgid", st.Mode)
	}
	for what, command := range map[string]string{
		"truncate":   `truncate -s 1 d/f`,
		"a write":    `printf z >>d/f`,
		"O_TRUNC":    `: >d/f`,
		"chown":      `chown $(id -u):$(id -g) d/f`,
		"fallocate":  `fallocate -l 100 d/f`,
		"O_RDWR":     `exec 3<>d/f && printf z >&3`,
		"O_DIRECT":   `dd if=/dev/zero of=d/f bs=4096 count=1 oflag=direct conv=notrunc status=none`,
		"chgrp":      `chgrp $(id -g) d/f`,
		"chmod back": `chmod 777 d/f`,
	} {
		if out, err := as(user, j.scratch(0), `cd $D && chmod 6777 d/f && `+command); err != nil {
			t.Fatalf("%s: %v: %s", what, err, out)
		}
		if st := stat(t, j.scratch(1, "d/f")); st.Mode != syscall.S_IFREG|0o777 {
			t.Errorf("mode %o after %s by the user, want no setuid and setgid", st.Mode, what)
		}
	}
	for what, command := range map[string]string{"truncate": `truncate -s 1 d/f`, "a write": `exec 3<>d/f && printf z >&3`, "chown": `chown $(id -u) d/f`} {
		if out, err := as(user, j.scratch(0), `cd $D && chmod 6767 d/f && `+command); err != nil {
			t.Fatalf("%s: %v: %s", what, err, out)
		}
		if st := stat(t, j.scratch(1, "d/f")); st.Mode != syscall.S_IFREG|0o2767 {
			t.Errorf("mode %o after %s by the user, want no setuid, and setgid as the mark for mandatory locks", st.Mode, what)
		}
	}
	check(t, os.Chmod(j.scratch(1, "d/f"), 0o777|os.ModeSetuid|os.ModeSetgid))
	check(t, os.WriteFile(j.scratch(0, "d/f"), []byte("by root"), 0))
	if st := stat(t, j.scratch(1, "d/f")); st.Mode != syscall.S_IFREG|0o6777 {
		t.Errorf("mode %o after a write by root, who may keep setuid and setgid", st.Mode)
	}
	check(t, os.Chown(j.scratch(0, "d/f"), user, user))
	if st := stat(t, j.scratch(1, "d/f")); st.Mode != syscall.S_IFREG|0o777 {
		t.Errorf("mode %o after chown by root, want no setuid and setgid", st.Mode)
	}
	if out, err := as(user, j.scratch(0), `cd $D && mkdir d/sub && echo >d/sub/new && chmod 1777 e`); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, mode := range map[string]uint32{"d/sub": syscall.S_IFDIR | 0o2755, "e": syscall.S_IFDIR | 0o3777} {
		if st := stat(t, j.scratch(1, name)); st.Mode != mode {
			t.Errorf("mode of %s = %o, want %o", name, st.Mode, mode)
		}
	}
	if out, err := as(user, j.dirs[0], `cat $D/data/set/train/000 $D/.bivouac/status >/dev/null && ! touch $D/data/set/x 2>/dev/null`); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for what, command := range map[string]string{"listing": `ls $D`, "reading": `cat $D/data/set/big`, "writing": `touch $D/scratch/x`} {
		if out, err := as(user+1, j.dirs[0], command); err == nil || !strings.Contains(out, "Permission denied") {
			t.Errorf("%s by another user = %v: %s", what, err, out)
		}
	}
}

// TestInterrupted: a call that hangs ends when its process is killed, and the mount survives.
func TestInterrupted(t *testing.T) {
	j := newJob(t)
	check(t, os.WriteFile(j.scratch(0, "f"), pattern(100), 0o644))
	hang := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(hang) })
	t.Cleanup(goOn) // before the unmount
	j.hang.Store(&hang)
	c := exec.Command("/bin/cat", j.scratch(1, "f"))
	check(t, c.Start())
	for deadline := time.Now().Add(10 * time.Second); j.hung.Load() == 0; { // until the process hangs in a read
		if time.Now().After(deadline) {
			t.Fatal("cat does not read")
		}
		if _, err := os.Stat(j.dirs[0]); err != nil {
			t.Fatal(err)
		}
	}
	check(t, c.Process.Signal(syscall.SIGINT))
	start := time.Now()
	if err := c.Wait(); err == nil {
		t.Error("cat succeeded")
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("cat ended after %v", d)
	}
	goOn() // the kernel's read-ahead cannot be interrupted; a deadline ends it
	wantFile(t, j.scratch(1, "f"), pattern(100))
}

// TestTrustedXattrs: only root lists and reads trusted attributes.
func TestTrustedXattrs(t *testing.T) {
	j := newJobOf(t, user)
	for p := filepath.Dir(j.dirs[0]); p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		check(t, os.Chmod(p, 0o755))
	}
	file := j.scratch(0, "f")
	check(t, os.WriteFile(file, nil, 0o644))
	check(t, os.Chown(file, user, user))
	for _, name := range []string{"trusted.a", "security.b", "user.c"} {
		check(t, unix.Setxattr(file, name, []byte("x"), 0))
	}
	if got := strings.Join(listXattrs(t, file), " "); got != "security.b trusted.a user.c" {
		t.Errorf("root lists %q", got)
	}
	listed := make(chan string)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		_, err := unix.SetfsuidRetUid(user)
		b := make([]byte, 100)
		n, lerr := unix.Llistxattr(file, b)
		listed <- fmt.Sprintf("%q %v", b[:max(n, 0)], errors.Join(err, lerr))
	}()
	if got := <-listed; got != `"security.b\x00user.c\x00" <nil>` {
		t.Errorf("the user lists %s", got)
	}
}
