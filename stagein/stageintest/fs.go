package stageintest

import (
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// MemFS is a filesystem in memory that counts opens and bytes read.
type MemFS struct {
	Mu       sync.Mutex
	Nodes    map[string]*MemNode // by clean absolute path
	Read     atomic.Int64
	Opened   atomic.Int64                 // open files
	Most     atomic.Int64                 // largest number open at once
	OnRead   func(path string, off int64) // called before each read
	OnBytes  func(n int64)                // called when n bytes have been read
	FailRead atomic.Pointer[func() error] // its error fails reads; nil: none does
}

// MemNode is a file, directory or symbolic link of a MemFS.
type MemNode struct {
	Info   source.Info
	Data   []byte
	Target string
	Err    error
}

// NewFS returns an empty filesystem.
func NewFS() *MemFS { return &MemFS{Nodes: map[string]*MemNode{}} }

// Add adds a node; its parent directories may be missing.
func (m *MemFS) Add(path string, mode uint32, data []byte) *MemNode {
	n := &MemNode{Data: data, Info: source.Info{
		Mode: mode, Size: int64(len(data)), Mtime: metadata.Time(1e18 + int64(len(path))), Nlink: 1, Ino: uint64(len(m.Nodes) + 1),
	}}
	m.Nodes[path] = n
	return n
}

func (m *MemFS) node(path string) (*MemNode, error) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	n, ok := m.Nodes[path]
	if !ok {
		return nil, syscall.ENOENT
	}
	return n, nil
}

// Open opens a regular file.
func (m *MemFS) Open(path string) (source.File, error) {
	n, err := m.node(path)
	switch {
	case err != nil:
		return nil, err
	case n.Err != nil:
		return nil, n.Err
	case n.Info.Is(source.TypeSymlink):
		return nil, syscall.ELOOP
	case !n.Info.Is(source.TypeRegular):
		return nil, syscall.EINVAL
	}
	for n := m.Opened.Add(1); ; {
		if most := m.Most.Load(); n <= most || m.Most.CompareAndSwap(most, n) {
			break
		}
	}
	return &memFile{m, path, n}, nil
}

// Lstat returns the attributes of a node.
func (m *MemFS) Lstat(path string) (source.Info, error) {
	n, err := m.node(path)
	if err != nil {
		return source.Info{}, err
	}
	return n.Info, nil
}

// Readlink returns the target of a symbolic link.
func (m *MemFS) Readlink(path string) (string, error) {
	n, err := m.node(path)
	if err != nil {
		return "", err
	}
	return n.Target, nil
}

// ReadDir lists a directory, in no order.
func (m *MemFS) ReadDir(path string) ([]string, error) {
	n, err := m.node(path)
	if err != nil {
		return nil, err
	}
	if n.Err != nil {
		return nil, n.Err
	}
	m.Mu.Lock()
	defer m.Mu.Unlock()
	var names []string
	for p := range m.Nodes {
		if filepath.Dir(p) == path && p != path {
			names = append(names, filepath.Base(p))
		}
	}
	return names, nil
}

type memFile struct {
	fs   *MemFS
	path string
	n    *MemNode
}

func (f *memFile) Close() error { f.fs.Opened.Add(-1); return nil }

func (f *memFile) Stat() (source.Info, error) {
	f.fs.Mu.Lock()
	defer f.fs.Mu.Unlock()
	return f.n.Info, nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if f.fs.OnRead != nil {
		f.fs.OnRead(f.path, off)
	}
	if spoil := f.fs.FailRead.Load(); spoil != nil {
		if err := (*spoil)(); err != nil {
			return 0, err
		}
	}
	f.fs.Mu.Lock()
	data := f.n.Data
	f.fs.Mu.Unlock()
	if off >= int64(len(data)) {
		return 0, io.EOF
	}
	n := copy(p, data[off:])
	f.fs.Read.Add(int64(n))
	if f.fs.OnBytes != nil {
		f.fs.OnBytes(int64(n))
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
