package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// loopback is the FUSE library's own file system over a directory of the disk,
// as it comes, in a process of its own.
type loopback struct {
	under, dir string
	made       int
	cmd        *exec.Cmd
	in         io.Closer // closed to end it
}

func newLoopback(under, dir string) (*loopback, error) {
	for _, d := range []string{under, dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	l := &loopback{under: under, dir: dir}
	return l, l.mount()
}

func (l *loopback) mount() error {
	c, err := spawn("loopback", l.under, l.dir)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	l.cmd, l.in = c.cmd, c.in
	return nil
}

func (l *loopback) close() error {
	_ = l.in.Close() // a pipe
	return l.cmd.Wait()
}

func (l *loopback) fresh() (string, error) {
	l.made++
	d := filepath.Join(l.dir, "d"+strconv.Itoa(l.made))
	return d, os.Mkdir(d, 0o755)
}

// serveLoopback is the process: it mounts, says so, and unmounts when its
// input ends.
func serveLoopback(under, dir string) error {
	root, err := fs.NewLoopbackRoot(under)
	if err != nil {
		return err
	}
	opts := &fs.Options{MountOptions: fuse.MountOptions{Name: "loopback", FsName: under, DirectMount: os.Geteuid() == 0}}
	s, err := fs.Mount(dir, root, opts)
	if err != nil {
		return err
	}
	ready()
	awaitInput()
	if err := s.Unmount(); err != nil {
		return err
	}
	s.Wait()
	return nil
}
