package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// rawLoopback is the least that a FUSE server can do to show a list of files:
// one directory of numbers, known for ever, read by passthrough with ids that
// are kept where the kernel has that, else through the page cache.
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
	_ = r.cmd.Wait() // a mount that stays is seen by the next use of its directory
}

func (r *rawLoopback) paths() []string {
	paths := make([]string, r.n)
	for i := range paths {
		paths[i] = filepath.Join(r.dir, strconv.Itoa(i))
	}
	return paths
}

// serveRaw is the process.
func serveRaw(list, dir string) error {
	f, err := os.Open(list)
	if err != nil {
		return err
	}
	defer f.Close()
	s := &rawFS{RawFileSystem: fuse.NewDefaultRawFileSystem(), open: make(map[uint64]*rawFile)}
	for in := bufio.NewScanner(f); in.Scan(); {
		s.files = append(s.files, rawFile{path: in.Text()})
	}
	server, err := fuse.NewServer(s, dir, &fuse.MountOptions{
		Name: "raw", FsName: "raw", DirectMount: os.Geteuid() == 0, AllowOther: os.Geteuid() == 0,
		Options: []string{"default_permissions"}, MaxWrite: 1 << 20, MaxBackground: 64,
	})
	if err != nil {
		return err
	}
	go server.Serve()
	if err := server.WaitMount(); err != nil {
		return err
	}
	ready()
	awaitInput()
	return server.Unmount()
}

// rawFS answers with node ids that are the numbers of files, from 2 on.
type rawFS struct {
	fuse.RawFileSystem
	server *fuse.Server
	files  []rawFile

	mu   sync.RWMutex
	next uint64
	open map[uint64]*rawFile // under mu
}

type rawFile struct {
	path string

	mu      sync.Mutex
	backing int32    // under mu
	file    *os.File // under mu; where there is no passthrough
}

const rawForEver = 365 * 24 * time.Hour

func (s *rawFS) String() string { return "raw" }

func (s *rawFS) Init(server *fuse.Server) { s.server = server }

func (s *rawFS) attr(node uint64, out *fuse.Attr) fuse.Status {
	if node == fuse.FUSE_ROOT_ID {
		*out = fuse.Attr{Ino: node, Mode: fuse.S_IFDIR | 0o755, Nlink: 2}
		return fuse.OK
	}
	var st unix.Stat_t
	if err := unix.Stat(s.files[node-2].path, &st); err != nil {
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

func (s *rawFS) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	f := &s.files[in.NodeId-2]
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
	if id := f.register(s.server); id != 0 {
		out.OpenFlags = fuse.FOPEN_PASSTHROUGH | fuse.FOPEN_NOFLUSH
		out.BackingID = id
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	out.Fh = s.next
	s.open[out.Fh] = f
	return fuse.OK
}

func (f *rawFile) register(server *fuse.Server) int32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.backing != 0 || f.file != nil {
		return f.backing
	}
	file, err := os.Open(f.path)
	if err != nil {
		return 0
	}
	id, no := server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(file.Fd())})
	if no != 0 {
		f.file = file
		return 0
	}
	_ = file.Close() // the kernel has its own
	f.backing = id
	return id
}

func (s *rawFS) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	s.mu.RLock()
	f := s.open[in.Fh]
	s.mu.RUnlock()
	if f == nil || f.file == nil {
		return nil, fuse.EBADF
	}
	return fuse.ReadResultFd(f.file.Fd(), int64(in.Offset), int(in.Size)), fuse.OK
}

func (s *rawFS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, in.Fh)
}
