package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// loopback is the FUSE library's own unmodified filesystem over a directory of the disk, in a separate process.
type loopback struct {
	under, dir string
	how        string // loopFile or loopPages
	made       int
	cmd        *exec.Cmd
	in         io.Closer // closed to end it
}

// Modes of reading a loopback's files: as the library does, as root from the file below (passthrough, Linux 6.9), or
// from pages that the kernel caches for the mount.
const loopFile, loopPages = "file", "pages"

func newLoopback(under, dir, how string) (*loopback, error) {
	for _, d := range []string{under, dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	l := &loopback{under: under, dir: dir, how: how}
	return l, l.mount()
}

func (l *loopback) mount() error {
	c, err := spawn("loopback", l.under, l.dir, l.how)
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

// serveLoopback runs in the process: it mounts, reports that, and unmounts when its input ends.
func serveLoopback(under, dir, how string) error {
	root, err := fs.NewLoopbackRoot(under)
	if err != nil {
		return err
	}
	var attrs *time.Duration
	if how == loopPages {
		long := time.Hour // a read requests unknown attributes
		attrs = &long
		n := root.(*fs.LoopbackNode)
		root = &pagedNode{n}
		n.RootData.RootNode = root
	}
	opts := &fs.Options{AttrTimeout: attrs, MountOptions: fuse.MountOptions{Name: "loopback", FsName: under, DirectMount: os.Geteuid() == 0}}
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

// pagedNode is a file whose cached pages the kernel keeps across opens.
type pagedNode struct{ *fs.LoopbackNode }

// pagedFile is an open pagedNode, without PassthroughFd.
type pagedFile struct {
	fs.FileHandle
	fs.FileReader
	fs.FileWriter
	fs.FileReleaser
	fs.FileGetattrer
}

// WrapChild makes every child a pagedNode, too.
func (n *pagedNode) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &pagedNode{ops.(*fs.LoopbackNode)}
}

// Open returns a pagedFile, which hides the file below.
func (n *pagedNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, _, errno := n.LoopbackNode.Open(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	f := h.(*fs.LoopbackFile)
	return pagedFile{f, f, f, f, f}, fuse.FOPEN_KEEP_CACHE, 0
}
