package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/integration/slowpfs"
	"github.com/bivouacfs/bivouac/metadata"
)

// driveSize returns the size of a node's drive, small enough to be filled in a moment. With -losses it has room for
// the logs of the names of three homes, 50 MiB each, beside the reserve for metadata.
func driveSize() int {
	if *losses {
		return 512 << 20
	}
	return 256 << 20
}

// disk is the tmpfs of a drive. The drives of odd nodes are in a FUSE filesystem on it, whose requests can fail; on
// the others, bytes can be changed below the daemon, with no cache to hide it.
type disk struct {
	dir, drive string
	in         io.Closer // of the FUSE filesystem's process, which ends when it is closed; nil: none
	cmd        *exec.Cmd
	client     *slowpfs.Client
}

// newDisk makes a disk in home.
func newDisk(t *testing.T, home string, fails bool) *disk {
	t.Helper()
	d := &disk{dir: filepath.Join(home, "disk"), drive: filepath.Join(home, "drive")}
	for _, dir := range []string{d.dir, d.drive} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("disk", d.dir, "tmpfs", 0, fmt.Sprint("size=", driveSize())); err != nil {
		t.Fatal(err)
	}
	if !fails {
		if err := unix.Mount(d.dir, d.drive, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		return d
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d.cmd, d.client = exec.Command(exe), slowpfs.NewClient(filepath.Join(home, "disk.sock"))
	d.cmd.Env = append(os.Environ(), diskOf+"="+home)
	d.cmd.Stderr = os.Stderr
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if n, err := out.Read(make([]byte, 1)); n == 0 {
		t.Fatalf("the disk of %s: %v", home, err)
	}
	return d
}

// serveDisk mounts the disk of a node as its drive until standard input ends.
func serveDisk(home string) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM) // standard input is closed then
	s, err := slowpfs.Serve(slowpfs.Config{
		Under: filepath.Join(home, "disk"), Mounts: []string{filepath.Join(home, "drive")}, Socket: filepath.Join(home, "disk.sock"),
		Kept: time.Nanosecond, // another program fills the disk
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // waits for its end
	return s.Close()
}

func (d *disk) end() error {
	var errs []error
	if d.in != nil {
		errs = append(errs, d.in.Close(), d.cmd.Wait())
	} else {
		errs = append(errs, unix.Unmount(d.drive, unix.MNT_DETACH))
	}
	return errors.Join(append(errs, unix.Unmount(d.dir, unix.MNT_DETACH))...)
}

// fails makes one of n requests of the drive fail with EIO; 0 is none.
func (d *disk) fails(n int) error {
	return d.client.SetLimits(context.Background(), slowpfs.Limits{Errors: n})
}

// fill takes all free space of the drive, like another program. A daemon that then cannot write its metadata ends.
func (x *node) fill() error {
	x.sick.Store(math.MaxInt64)
	f, err := os.Create(filepath.Join(x.disk.dir, "filler"))
	if err != nil {
		return err
	}
	defer f.Close()
	zeros := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(zeros)
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = nil
	}
	return err
}

// free releases the space.
func (x *node) free() error {
	defer x.recovered()
	return os.Remove(filepath.Join(x.disk.dir, "filler"))
}

// recovered records that the drive works again: later errors do not excuse the daemon's end.
func (x *node) recovered() { x.sick.Store(time.Now().UnixNano()) }

// garbage is a range of an object whose bytes were changed.
type garbage struct {
	path         string
	off          int64
	was, garbage []byte
}

// garble changes bytes of a random object that ok accepts; nil if there is none.
func (x *node) garble(rng *rand.Rand, ok func(ino metadata.Ino, path string) bool) (*garbage, error) {
	paths, err := filepath.Glob(filepath.Join(x.disk.dir, "store", "objects", "*", "*"))
	if err != nil {
		return nil, err
	}
	paths = slices.DeleteFunc(paths, func(path string) bool {
		ino, err := strconv.ParseUint(filepath.Base(path), 16, 64)
		return err != nil || !ok(metadata.Ino(ino), path)
	})
	if len(paths) == 0 {
		return nil, nil
	}
	g := &garbage{path: paths[rng.IntN(len(paths))], was: make([]byte, 16)}
	st, err := os.Stat(g.path)
	if err != nil || st.Size() < int64(len(g.was)) {
		return nil, nil // it was removed meanwhile
	}
	g.off = rng.Int64N(st.Size() - int64(len(g.was)) + 1)
	if err := g.access(func(f *os.File) error { // a hole has no checksum
		data, err := unix.Seek(int(f.Fd()), g.off, unix.SEEK_DATA)
		if err != nil || data != g.off {
			return errors.Join(err, syscall.ENODATA)
		}
		hole, err := unix.Seek(int(f.Fd()), g.off, unix.SEEK_HOLE)
		if err != nil || hole < g.off+int64(len(g.was)) {
			return errors.Join(err, syscall.ENODATA)
		}
		_, err = f.ReadAt(g.was, g.off)
		return err
	}); err != nil {
		return nil, nil // nothing to garble
	}
	g.garbage = slices.Clone(g.was)
	for i := range g.garbage {
		g.garbage[i] ^= byte(1 + rng.IntN(255))
	}
	return g, g.access(func(f *os.File) error { _, err := f.WriteAt(g.garbage, g.off); return err })
}

func (g *garbage) access(do func(*os.File) error) error {
	f, err := os.OpenFile(g.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return do(f)
}

// repair undoes garble, unless the bytes were written meanwhile. The daemon is stopped during this.
func (g *garbage) repair() error {
	now := make([]byte, len(g.was))
	err := g.access(func(f *os.File) error {
		if n, _ := f.ReadAt(now, g.off); n < len(now) || !bytes.Equal(now, g.garbage) {
			return nil
		}
		_, err := f.WriteAt(g.was, g.off)
		return err
	})
	if errors.Is(err, os.ErrNotExist) { // it was removed
		err = nil
	}
	return err
}

// bornSince reports whether a file was created after t.
func bornSince(path string, t time.Time) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &st)
	return err == nil && st.Mask&unix.STATX_BTIME != 0 && time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)).After(t)
}

// halted runs f while all threads of a node's daemon are stopped.
func (x *node) halted(f func() error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pid == 0 {
		return f()
	}
	if err := syscall.Kill(x.pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for !halt(x.pid, "TtZX") {
		time.Sleep(time.Millisecond)
	}
	return errors.Join(f(), syscall.Kill(x.pid, syscall.SIGCONT))
}

// halt reports whether all threads of a process are in one of these states, or it has ended.
func halt(pid int, states string) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is valid
	for _, stat := range stats {
		b, err := os.ReadFile(stat)
		_, state, ok := strings.Cut(string(b), ") ")
		if err == nil && ok && !strings.Contains(states, state[:1]) {
			return false
		}
	}
	return true
}
