package posix

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/integration/testcluster"
)

func init() {
	chores["lock"] = lockChore
	chores["count"] = countChore
}

// lockChore locks a file, by flock or a byte range, reports it, and waits.
func lockChore(args []string) error {
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := lockFile(f, args[1], true); err != nil {
		return err
	}
	if err := os.WriteFile(args[0]+".locked", nil, 0o644); err != nil {
		return err
	}
	held()
	return nil
}

// lockFile takes an exclusive lock of a kind.
func lockFile(f *os.File, kind string, wait bool) error {
	cmd, how := unix.F_SETLK, unix.LOCK_EX|unix.LOCK_NB
	if wait {
		cmd, how = unix.F_SETLKW, unix.LOCK_EX
	}
	if kind == "flock" {
		return unix.Flock(int(f.Fd()), how)
	}
	return unix.FcntlFlock(f.Fd(), cmd, &unix.Flock_t{Type: unix.F_WRLCK, Start: 1 << 30, Len: 10})
}

// countChore increments the number in a file under the file's lock.
func countChore(args []string) error {
	held()
	for range 10 {
		f, err := os.OpenFile(args[0], os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := lockFile(f, args[1], true); err != nil {
			return err
		}
		b, err := io.ReadAll(f)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(b))
		if err != nil {
			return err
		}
		if _, err := f.WriteAt([]byte(fmt.Sprintf("%06d", n+1)), 0); err != nil {
			return err
		}
		if err := f.Close(); err != nil { // this unlocks
			return err
		}
	}
	return nil
}

// locks: one process of all nodes holds the lock, and a process that dies loses its lock.
func locks(t *testing.T, c *camp, here, there string) {
	for _, kind := range []string{"flock", "fcntl"} {
		path := "/" + kind
		check(t, os.WriteFile(here+path, []byte("000000"), 0o644))
		p := start(t, "lock", here+path, kind)
		testcluster.Eventually(t, "it has the lock", func() bool {
			_, err := os.Lstat(there + path + ".locked")
			return err == nil
		})
		f, err := os.OpenFile(there+path, os.O_RDWR, 0)
		check(t, err)
		if err := lockFile(f, kind, false); !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EACCES) {
			t.Errorf("a second %s there = %v", kind, err)
		}
		check(t, p.Process.Kill())
		_ = p.Wait() // killed
		testcluster.Eventually(t, "the dead have no lock", func() bool { return lockFile(f, kind, false) == nil })
		check(t, f.Close())
		var all []*child
		for i := range 8 {
			dir := strings.Replace(here, c.mounts[0].Scratch, c.mounts[i%len(c.mounts)].Scratch, 1)
			all = append(all, start(t, "count", dir+path, kind))
		}
		for _, p := range all {
			_ = p.in.Close()
		}
		for _, p := range all {
			p.done(t)
		}
		if b, err := os.ReadFile(there + path); err != nil || string(b) != "000080" {
			t.Errorf("%s: 80 additions give %q, %v", kind, b, err)
		}
	}
}
