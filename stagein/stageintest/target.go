package stageintest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// TightTarget returns nodes that accept bytes bytes each and then fail with ENOSPC, regardless of the free space that
// they announced.
func TightTarget(bytes int64) *MemTarget {
	var mu sync.Mutex
	took := make(map[metadata.NodeID]int64)
	return &MemTarget{OnPut: func(node metadata.NodeID, _ metadata.Ino, n int) error {
		mu.Lock()
		defer mu.Unlock()
		if took[node]+int64(n) > bytes {
			return syscall.ENOSPC
		}
		took[node] += int64(n)
		return nil
	}}
}

// MemTarget holds the objects of all nodes.
type MemTarget struct {
	Mu       sync.Mutex
	Objects  map[ObjectKey][]byte
	OnPut    func(node metadata.NodeID, ino metadata.Ino, n int) error
	OnPutAll func(ps []datapath.PiecePut) // called with each batch
	Discard  bool                         // drop stored data, to measure
}

// ObjectKey identifies the object of one file on one node.
type ObjectKey struct {
	Node metadata.NodeID
	Ino  metadata.Ino
}

// Put stores a piece of a file on a node, unless ctx has ended.
func (m *MemTarget) Put(ctx context.Context, node metadata.NodeID, ino metadata.Ino, p []byte, off int64) error {
	if len(p) == 0 || len(p) > wire.MaxData || off < 0 {
		return fmt.Errorf("put of %d bytes at %d: %w", len(p), off, syscall.EINVAL)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.OnPut != nil {
		if err := m.OnPut(node, ino, len(p)); err != nil {
			return err
		}
	}
	if m.Discard {
		return nil
	}
	m.Mu.Lock()
	defer m.Mu.Unlock()
	k := ObjectKey{node, ino}
	b := m.Objects[k]
	if need := off + int64(len(p)); int64(len(b)) < need {
		b = append(b, make([]byte, need-int64(len(b)))...)
	}
	copy(b[off:], p)
	m.Objects[k] = b
	return nil
}

// PutAll stores a batch after checking every checksum.
func (m *MemTarget) PutAll(ctx context.Context, node metadata.NodeID, ps []datapath.PiecePut) ([]error, error) {
	if m.OnPutAll != nil {
		m.OnPutAll(ps)
	}
	for i := range ps {
		p := &ps[i]
		h := wire.PieceHeader{Ino: p.Ino, Off: p.Off, Len: uint32(p.Len()), Sum: p.Sum}
		if err := h.Check(bytes.Join(p.Data, nil)); err != nil {
			return nil, err
		}
	}
	errs := make([]error, len(ps))
	for i := range ps {
		off := ps[i].Off
		for _, b := range ps[i].Data {
			if errs[i] = m.Put(ctx, node, ps[i].Ino, b, off); errs[i] != nil {
				break
			}
			off += int64(len(b))
		}
	}
	return errs, nil
}

// Remove drops a file from a node, unless ctx has ended.
func (m *MemTarget) Remove(ctx context.Context, node metadata.NodeID, ino metadata.Ino) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.Mu.Lock()
	defer m.Mu.Unlock()
	delete(m.Objects, ObjectKey{node, ino})
	return nil
}
