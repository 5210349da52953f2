package main

import (
	"os"
	"path/filepath"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// newRawSink is a raw loopback for writes: the minimal FUSE server that stores the bytes it gets, with the settings
// of the mount.
func newRawSink(b *bench) (*rawLoopback, error) {
	r := &rawLoopback{dir: filepath.Join(b.home, "rawsink")}
	under := filepath.Join(b.home, "rawsink.files")
	for _, d := range []string{r.dir, under} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	c, err := spawn("raw-sink", under, r.dir)
	if err != nil {
		return nil, err
	}
	r.cmd, r.in = c.cmd, c.in
	return r, nil
}

// serveRawSink runs in the process.
func serveRawSink(under, dir string) error {
	s := &sinkFS{RawFileSystem: fuse.NewDefaultRawFileSystem(), under: under, names: make(map[string]uint64), open: make(map[uint64]int)}
	server, err := fuse.NewServer(s, dir, &fuse.MountOptions{
		Name: "rawsink", FsName: "rawsink", DirectMount: os.Geteuid() == 0, AllowOther: os.Geteuid() == 0,
		Options: []string{"default_permissions"}, MaxWrite: 512 << 10, MaxBackground: 64, ExtraCapabilities: fuse.CAP_DIRECT_IO_ALLOW_MMAP,
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

// sinkFS is one directory of files that are made, written and removed. A file's handle is its descriptor.
type sinkFS struct {
	fuse.RawFileSystem
	under string

	mu    sync.Mutex
	names map[string]uint64 // guarded by mu: node ids
	last  uint64            // guarded by mu
	open  map[uint64]int    // guarded by mu: the descriptor of a node, for its attributes
}

func (s *sinkFS) String() string { return "rawsink" }

func (s *sinkFS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.NodeId == fuse.FUSE_ROOT_ID {
		out.Attr = fuse.Attr{Ino: in.NodeId, Mode: fuse.S_IFDIR | 0o777, Nlink: 2}
		return fuse.OK
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Fstat(s.open[in.NodeId], &st); err != nil {
		return fuse.ToStatus(err)
	}
	out.Attr = fuse.Attr{Ino: in.NodeId, Mode: fuse.S_IFREG | 0o644, Nlink: 1, Size: uint64(st.Size)}
	return fuse.OK
}

func (s *sinkFS) Lookup(_ <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.names[name]
	if !ok {
		return fuse.ENOENT
	}
	out.NodeId = id
	out.Attr = fuse.Attr{Ino: id, Mode: fuse.S_IFREG | 0o644, Nlink: 1}
	return fuse.OK
}

func (s *sinkFS) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	fd, err := unix.Open(filepath.Join(s.under, name), unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fuse.ToStatus(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	id := fuse.FUSE_ROOT_ID + s.last
	s.names[name], s.open[id] = id, fd
	out.NodeId = id
	out.Attr = fuse.Attr{Ino: id, Mode: fuse.S_IFREG | 0o644, Nlink: 1}
	out.Fh = uint64(fd)
	out.OpenFlags = fuse.FOPEN_DIRECT_IO
	return fuse.OK
}

func (s *sinkFS) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	n, err := unix.Pwrite(int(in.Fh), data, int64(in.Offset))
	if err != nil {
		return 0, fuse.ToStatus(err)
	}
	return uint32(n), fuse.OK
}

// Flush does nothing.
func (s *sinkFS) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

func (s *sinkFS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, in.NodeId)
	_ = unix.Close(int(in.Fh)) // the file is removed next
}

func (s *sinkFS) Unlink(_ <-chan struct{}, _ *fuse.InHeader, name string) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, name)
	return fuse.ToStatus(unix.Unlink(filepath.Join(s.under, name)))
}
