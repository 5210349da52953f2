package fsclient

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/fsclient/cache"
	"github.com/bivouacfs/bivouac/fsclient/locks"
	"github.com/bivouacfs/bivouac/fsclient/route"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/fsclient/writeback"
	"github.com/bivouacfs/bivouac/metadata"
)

// The interfaces through which the parts of a client see each other.
var (
	_ stripe.Nodes     = dataNodes{}
	_ cache.Nodes      = dataNodes{}
	_ locks.Files      = lockedFiles{}
	_ writeback.Client = bufferedClient{}
	_ writeback.File   = bufferedFile{}
)

// dataNodes gives access to the nodes for data and space calls.
type dataNodes struct{ *route.Router }

func (n dataNodes) Up() []metadata.NodeID {
	m := n.Map()
	if up := m.Up(); len(up) > 0 {
		return up
	}
	return m.UpAt(0)
}

func (n dataNodes) Space(ctx context.Context, id metadata.NodeID) (datapath.Space, error) {
	d, err := n.Data(id)
	if err != nil {
		return datapath.Space{}, err
	}
	return d.Space(ctx)
}

// lockedFiles gives package locks access to the files of a client.
type lockedFiles struct{ c *Client }

func (l lockedFiles) Locks(ino metadata.Ino) (metadata.Locks, error) {
	s, err := l.c.nodes.Home(ino)
	if err != nil {
		return nil, err
	}
	h, ok := s.(metadata.Locks)
	if !ok {
		return nil, fmt.Errorf("home does not support file locks: %w", syscall.ENOLCK)
	}
	return h, nil
}

func (l lockedFiles) HomeAlive(home metadata.NodeID) error { return l.c.nodes.HomeAlive(home) }

func (l lockedFiles) Hold(ino metadata.Ino) (release func()) {
	f := l.c.files.holdIno(ino)
	if f == nil {
		return nil
	}
	return func() { l.c.release(f) }
}

func (l lockedFiles) Flush(ctx context.Context, ino metadata.Ino) error {
	return l.c.flushOpen(ctx, ino)
}

func (l lockedFiles) Drain(ctx context.Context) error { return l.c.pool.Drain(ctx) }

// bufferedClient gives package writeback access to a client.
type bufferedClient struct{ c *Client }

func (b bufferedClient) Flush(ctx context.Context, wf writeback.File) (again bool) {
	f := wf.(bufferedFile).f
	if !b.c.files.hold(f) {
		return false // the last close has flushed it
	}
	defer b.c.release(f)
	err := f.Flush(ctx)
	var invisible bool
	if err == nil {
		invisible, err = f.settleInvisible(ctx)
	}
	if err != nil { // the file stays dirty, and its close reports the error
		b.c.cfg.Log.WithError(err).WithField("inode", f.ino.String()).Debug("size of a written file not delivered to its home")
	}
	return err == nil && invisible || b.c.mayReturn(f.ino.Home(), err)
}

func (b bufferedClient) Free(ctx context.Context, id metadata.NodeID) (int64, error) {
	sp, err := dataNodes{b.c.nodes}.Space(ctx, id)
	return sp.Free, err
}

func (b bufferedClient) Nodes() int { return len(b.c.nodes.Map().Nodes) }

// bufferedFile gives a write-back buffer access to its file.
type bufferedFile struct{ f *File }

func (b bufferedFile) Ino() metadata.Ino { return b.f.ino }

func (b bufferedFile) WriteThrough(ctx context.Context, p []byte, off int64) (int, error) {
	return b.f.writeNow(ctx, p, off)
}

func (b bufferedFile) AppendThrough(ctx context.Context, p []byte) (int, error) {
	return b.f.appendNow(ctx, p)
}

func (b bufferedFile) Alone() bool { return b.f.isAlone() }

func (b bufferedFile) Spans(off, pending, n int64) []datapath.Span {
	b.f.mu.Lock()
	a, order := b.f.known(), b.f.order
	b.f.mu.Unlock()
	if off == writeback.AtEnd {
		off = a.Size + pending
	}
	return b.f.c.data.Spans(&a, order, off, n)
}

// mayReturn reports whether err means that a live home did not answer: the call is worth retrying.
func (c *Client) mayReturn(home metadata.NodeID, err error) bool {
	return rpc.Unanswered(err) && c.nodes.HomeAlive(home) == nil
}

// opensOf returns the interface by which a home serves clients that have its files open.
func opensOf(s metadata.NodeStore) (metadata.Opens, error) {
	o, ok := s.(metadata.Opens)
	if !ok {
		return nil, fmt.Errorf("home does not track open files: %w", syscall.EOPNOTSUPP)
	}
	return o, nil
}
