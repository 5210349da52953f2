package stagein

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// memFS is a filesystem in memory that counts the bytes that are read.
type memFS struct {
	mu     sync.Mutex
	nodes  map[string]*memNode // by clean absolute path
	read   atomic.Int64
	open   atomic.Int64                 // files
	most   atomic.Int64                 // of them at a time
	onRead func(path string, off int64) // before a read
	spoil  atomic.Pointer[func() error] // fails reads; nil does not
}

type memNode struct {
	info   source.Info
	data   []byte
	target string
	err    error
}

func newFS() *memFS { return &memFS{nodes: map[string]*memNode{}} }

func (m *memFS) add(path string, mode uint32, data []byte) *memNode {
	n := &memNode{data: data, info: source.Info{
		Mode: mode, Size: int64(len(data)), Mtime: metadata.Time(1e18 + int64(len(path))), Nlink: 1, Ino: uint64(len(m.nodes) + 1),
	}}
	m.nodes[path] = n
	return n
}

func (m *memFS) node(path string) (*memNode, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.nodes[path]
	if !ok {
		return nil, syscall.ENOENT
	}
	return n, nil
}

func (m *memFS) Open(path string) (source.File, error) {
	n, err := m.node(path)
	switch {
	case err != nil:
		return nil, err
	case n.err != nil:
		return nil, n.err
	case n.info.Is(source.TypeSymlink):
		return nil, syscall.ELOOP
	case !n.info.Is(source.TypeRegular):
		return nil, syscall.EINVAL
	}
	for n := m.open.Add(1); ; {
		if most := m.most.Load(); n <= most || m.most.CompareAndSwap(most, n) {
			break
		}
	}
	return &memFile{m, path, n}, nil
}

func (m *memFS) Lstat(path string) (source.Info, error) {
	n, err := m.node(path)
	if err != nil {
		return source.Info{}, err
	}
	return n.info, nil
}

func (m *memFS) Readlink(path string) (string, error) {
	n, err := m.node(path)
	if err != nil {
		return "", err
	}
	return n.target, nil
}

func (m *memFS) ReadDir(path string) ([]string, error) {
	n, err := m.node(path)
	if err != nil {
		return nil, err
	}
	if n.err != nil {
		return nil, n.err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for p := range m.nodes {
		if filepath.Dir(p) == path && p != path {
			names = append(names, filepath.Base(p))
		}
	}
	return names, nil
}

type memFile struct {
	fs   *memFS
	path string
	n    *memNode
}

func (f *memFile) Close() error { f.fs.open.Add(-1); return nil }

func (f *memFile) Stat() (source.Info, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.n.info, nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if f.fs.onRead != nil {
		f.fs.onRead(f.path, off)
	}
	if spoil := f.fs.spoil.Load(); spoil != nil {
		if err := (*spoil)(); err != nil {
			return 0, err
		}
	}
	f.fs.mu.Lock()
	data := f.n.data
	f.fs.mu.Unlock()
	if off >= int64(len(data)) {
		return 0, io.EOF
	}
	n := copy(p, data[off:])
	f.fs.read.Add(int64(n))
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// memTarget is the objects of all nodes.
type memTarget struct {
	mu      sync.Mutex
	objects map[objectKey][]byte
	put     func(node metadata.NodeID, ino metadata.Ino, n int) error
	all     func(ps []datapath.Parcel) // before they are put together
	discard bool                       // what is put
}

type objectKey struct {
	node metadata.NodeID
	ino  metadata.Ino
}

func (m *memTarget) Put(ctx context.Context, node metadata.NodeID, ino metadata.Ino, p []byte, off int64) error {
	if len(p) == 0 || len(p) > wire.MaxData || off < 0 {
		return fmt.Errorf("put of %d bytes at %d: %w", len(p), off, syscall.EINVAL)
	}
	if m.put != nil {
		if err := m.put(node, ino, len(p)); err != nil {
			return err
		}
	}
	if m.discard {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := objectKey{node, ino}
	b := m.objects[k]
	if need := off + int64(len(p)); int64(len(b)) < need {
		b = append(b, make([]byte, need-int64(len(b)))...)
	}
	copy(b[off:], p)
	m.objects[k] = b
	return nil
}

func (m *memTarget) PutAll(ctx context.Context, node metadata.NodeID, ps []datapath.Parcel) ([]error, error) {
	if m.all != nil {
		m.all(ps)
	}
	for i := range ps {
		p := &ps[i]
		h := wire.ParcelHead{Ino: p.Ino, Off: p.Off, Len: uint32(p.Len()), Sum: p.Sum}
		if err := h.Check(bytes.Join(p.Data, nil)); err != nil {
			return nil, err
		}
	}
	return PutEach(ctx, ps, func(ctx context.Context, ino metadata.Ino, b []byte, off int64) error {
		return m.Put(ctx, node, ino, b, off)
	}), nil
}

func (m *memTarget) Remove(ctx context.Context, node metadata.NodeID, ino metadata.Ino) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, objectKey{node, ino})
	return nil
}
