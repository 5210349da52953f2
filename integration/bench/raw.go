package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/mounts"
)

// rawLoopback is the minimal FUSE server that shows a list of files: one directory of numbers, cached forever, with
// the settings of a cover: the kernel opens and closes without the server, and reads through its page cache.
type rawLoopback struct {
	dir string
	n   int
	cmd *exec.Cmd
	in  interface{ Close() error }
}

func newRawLoopback(b *bench, files []string) (*rawLoopback, error) {
	r := &rawLoopback{dir: filepath.Join(b.home, "raw"), n: len(files)}
	list := filepath.Join(b.home, "raw.list")
	if err := writeLines(list, files); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	c, err := spawn("raw", list, r.dir)
	if err != nil {
		return nil, fmt.Errorf("raw loopback: %w", err)
	}
	r.cmd, r.in = c.cmd, c.in
	return r, nil
}

func (r *rawLoopback) close() {
	_ = r.in.Close() // a pipe
	_ = r.cmd.Wait() // the next use of its directory reveals a leftover mount
}

func (r *rawLoopback) paths() []string {
	paths := make([]string, r.n)
	for i := range paths {
		paths[i] = filepath.Join(r.dir, strconv.Itoa(i))
	}
	return paths
}

// serveRaw runs in the process.
func serveRaw(list, dir string) error {
	f, err := os.Open(list)
	if err != nil {
		return err
	}
	defer f.Close()
	s := &rawFS{RawFileSystem: fuse.NewDefaultRawFileSystem()}
	for in := bufio.NewScanner(f); in.Scan(); {
		s.files = append(s.files, in.Text())
	}
	server, err := fuse.NewServer(s, dir, &fuse.MountOptions{
		Name: "raw", FsName: "raw", DirectMount: os.Geteuid() == 0, AllowOther: os.Geteuid() == 0,
		Options: []string{"default_permissions"}, MaxWrite: 1 << 20, MaxBackground: 64, DisableSplice: true,
	})
	if err != nil {
		return err
	}
	go server.Serve()
	if err := server.WaitMount(); err != nil {
		return err
	}
	if err := mounts.SetReadAhead(dir); err != nil && os.Geteuid() == 0 {
		return err
	}
	ready()
	awaitInput()
	return server.Unmount()
}

// rawFS uses the numbers of files as node ids, from 2 on.
type rawFS struct {
	fuse.RawFileSystem
	files []string
}

const rawForEver = 365 * 24 * time.Hour

func (s *rawFS) String() string { return "raw" }

func (s *rawFS) attr(node uint64, out *fuse.Attr) fuse.Status {
	if node == fuse.FUSE_ROOT_ID {
		*out = fuse.Attr{Ino: node, Mode: fuse.S_IFDIR | 0o755, Nlink: 2}
		return fuse.OK
	}
	var st unix.Stat_t
	if err := unix.Stat(s.files[node-2], &st); err != nil {
		return fuse.ToStatus(err)
	}
	*out = fuse.Attr{Ino: node, Mode: fuse.S_IFREG | 0o644, Nlink: 1, Size: uint64(st.Size), Blksize: 64 << 10}
	return fuse.OK
}

func (s *rawFS) Lookup(_ <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	i, err := strconv.ParseUint(name, 10, 32)
	if err != nil || i >= uint64(len(s.files)) {
		return fuse.ENOENT
	}
	out.NodeId = i + 2
	out.SetEntryTimeout(rawForEver)
	out.SetAttrTimeout(rawForEver)
	return s.attr(out.NodeId, &out.Attr)
}

func (s *rawFS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.SetTimeout(rawForEver)
	return s.attr(in.NodeId, &out.Attr)
}

// Open makes the kernel open all files without the server.
func (s *rawFS) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.ENOSYS }

// Flush is unsupported.
func (s *rawFS) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

// Read opens the file for each request: the server sees no open or close, so it keeps no descriptors.
func (s *rawFS) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	fd, err := unix.Open(s.files[in.NodeId-2], unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fuse.ToStatus(err)
	}
	defer unix.Close(fd)
	n, err := unix.Pread(fd, buf[:in.Size], int64(in.Offset))
	if err != nil {
		return nil, fuse.ToStatus(err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}
