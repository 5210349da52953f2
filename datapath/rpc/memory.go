package rpc

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/bivouacfs/bivouac/datapath/wire"
)

// The size classes of buffers: the first holds a request without data, the last but one a full read or write with its
// message.
var bufferSizes = [...]int{smallBuffer, 64 << 10, 256 << 10, wire.MaxData + smallBuffer, wire.MaxFrame}

const smallBuffer = 4 << 10

var bufferPools [len(bufferSizes)]sync.Pool // of *buffer

// connMemory limits the server memory of one bulk connection, so that a peer that reads its replies slowly cannot use
// all of it.
const connMemory = 32 << 20 / bulkConns

// PeerMemory bounds the other memory of the connections with one node, both ends: the buffers of
// six connections, and requests that wait for a worker.
const PeerMemory = (2 + bulkConns) * (80<<10 + smallBuffer)

// buffer is pooled memory of one size class.
type buffer struct {
	b    []byte // of the full size of its class
	size int    // index in bufferSizes
	of   *memory
	room *semaphore.Weighted // its connection's limit; nil: none
}

// memory hands out buffers: for bulk data up to a limit, first come, first served. Small requests
// and metadata do not wait: the numbers of workers and connections bound them.
type memory struct {
	most int64
	room *semaphore.Weighted

	inUse, peak, out atomic.Int64
}

func newMemory(most int64) *memory {
	return &memory{most: most, room: semaphore.NewWeighted(most)}
}

// get returns a buffer of at least n bytes; n is at most wire.MaxFrame. With conn, a connection's limit, it waits for
// memory until ctx ends.
func (m *memory) get(ctx context.Context, n int, conn *semaphore.Weighted) (*buffer, error) {
	size := 0
	for n > bufferSizes[size] {
		size++
	}
	if size == 0 {
		conn = nil
	}
	if err := m.reserve(ctx, int64(bufferSizes[size]), conn); err != nil {
		return nil, err
	}
	b, _ := bufferPools[size].Get().(*buffer)
	if b == nil {
		b = &buffer{b: make([]byte, bufferSizes[size]), size: size}
	}
	b.of, b.room = m, conn
	m.out.Add(1)
	now := m.inUse.Add(int64(len(b.b)))
	for p := m.peak.Load(); now > p && !m.peak.CompareAndSwap(p, now); {
		p = m.peak.Load()
	}
	return b, nil
}

func (m *memory) reserve(ctx context.Context, n int64, conn *semaphore.Weighted) error {
	if conn == nil {
		return nil
	}
	if err := acquire(ctx, conn, n); err != nil {
		return err
	}
	if err := acquire(ctx, m.room, n); err != nil {
		conn.Release(n)
		return err
	}
	return nil
}

// acquire checks ctx only if it must wait: the context of an inline request has already ended.
func acquire(ctx context.Context, s *semaphore.Weighted, n int64) error {
	if s.TryAcquire(n) {
		return nil
	}
	return s.Acquire(ctx, n)
}

// put returns the buffer to its pool.
func (b *buffer) put() {
	m, n := b.of, int64(len(b.b))
	m.out.Add(-1)
	m.inUse.Add(-n)
	if b.room != nil {
		m.room.Release(n)
		b.room.Release(n)
	}
	b.of, b.room = nil, nil
	bufferPools[b.size].Put(b)
}

// MemoryStats counts the buffers of a server.
type MemoryStats struct {
	Most  int64 `json:"most"`   // limit for bulk data, in bytes
	InUse int64 `json:"in_use"` // bytes, those of metadata included
	Peak  int64 `json:"peak"`   // the highest InUse so far
	Out   int64 `json:"out"`    // buffers in use
}

func (m *memory) stats() MemoryStats {
	return MemoryStats{Most: m.most, InUse: m.inUse.Load(), Peak: m.peak.Load(), Out: m.out.Load()}
}
