package stripe

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Nodes gives a Data access to the nodes.
type Nodes interface {
	// Data returns the file data of a node.
	Data(id metadata.NodeID) (datapath.Store, error)
	// Where appends to buf the nodes that have the byte at pos of the dataset file a, which owner owns: the owner, or
	// its stand-in if it was lost, and the holders of replicas.
	Where(buf []metadata.NodeID, a *metadata.Attr, owner metadata.NodeID, pos int64) []metadata.NodeID
	// CopiesOf returns where a part of a file with copies is now (cluster.Map.CopiesOf).
	CopiesOf(p cluster.Part) cluster.Copies
}

// Config says where the data is.
type Config struct {
	Self  metadata.NodeID
	Nodes Nodes
	// VerifyReads compares dataset bytes from other nodes with the staged content.
	VerifyReads bool
	Sources     *sources.Table // chooses between nodes that have the same bytes
	Log         *logrus.Entry
	Now         func() time.Time
}

// Data reads and writes the data of all files.
type Data struct {
	cfg Config

	readLocal, readRemote   atomic.Int64
	writeLocal, writeRemote atomic.Int64
	writing                 atomic.Int64
	datasets                datasetReads
}

// New returns the data of all files.
func New(cfg Config) *Data { return &Data{cfg: cfg} }

// Stats counts the bytes read and written.
type Stats struct {
	ReadLocal, ReadRemote   int64
	WriteLocal, WriteRemote int64
	Writing                 int64 // writes in flight
}

// Stats returns the counters since the start.
func (d *Data) Stats() Stats {
	return Stats{
		ReadLocal: d.readLocal.Load(), ReadRemote: d.readRemote.Load(),
		WriteLocal: d.writeLocal.Load(), WriteRemote: d.writeRemote.Load(), Writing: d.writing.Load(),
	}
}

func (d *Data) count(local, remote *atomic.Int64, id metadata.NodeID, n int) {
	if id == d.cfg.Self {
		local.Add(int64(n))
		return
	}
	remote.Add(int64(n))
}

// ReadOpts are the options of a read. The zero value reads into the caller's buffer and waits for bytes that are being
// staged.
type ReadOpts struct {
	// Pipe may get the bytes instead of the buffer, all of them (Pipe.N); nil: no pipe.
	Pipe *datapath.Pipe
	// NoWait reads from a dataset only bytes that the owners can return at once; EAGAIN if one cannot. It is for bytes
	// that no reader waits for.
	NoWait bool
	// Direct uses no content that was read ahead.
	Direct bool
}

// Read fills p from offset off of the file that a describes, which lies on the nodes order (cluster.Map.Order). Fewer
// bytes than len(p) mean the end of the file, at a.Size; holes are zeros.
func (d *Data) Read(ctx context.Context, a *metadata.Attr, order []metadata.NodeID, p []byte, off int64, o ReadOpts) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("inode %v: read at %d: %w", a.Ino, off, syscall.EINVAL)
	}
	if off >= a.Size {
		return 0, nil
	}
	p = p[:min(int64(len(p)), a.Size-off)]
	f := fileOn(a, order)
	spans := datapath.Spans(a.Layout.Chunk(), f.first, off, int64(len(p)))
	if len(spans) != 1 {
		o.Pipe = nil // the pipe's bytes could not be ordered
	}
	err := wait.Each(ctx, spans, func(ctx context.Context, s datapath.Span) error {
		part := p[s.Pos-off:][:s.Len]
		var err error
		if a.Ino.Sealed() {
			r := sealedRead{d: d, a: a, order: order, opts: o, Span: s}
			err = r.read(ctx, part)
		} else {
			err = d.readLive(ctx, &f, s, o, part)
		}
		if err != nil {
			return fmt.Errorf("inode %v: bytes at %d: %w", a.Ino, s.Pos, err)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// readLive reads a span of a live file, where missing bytes are a hole.
func (d *Data) readLive(ctx context.Context, f *file, s datapath.Span, o ReadOpts, p []byte) error {
	if f.copied() {
		o.Pipe = nil // the bytes may have to be read again
	}
	return d.onOne(ctx, f, s.Node, func(ctx context.Context, at place, node datapath.Store) error {
		n, err := readObject(ctx, node, at.object, p, s.Off, o)
		if err == nil && o.Pipe != nil && n < len(p) {
			err = o.Pipe.Take(p[:n])
		}
		if err != nil {
			return err
		}
		clear(p[n:])
		d.count(&d.readLocal, &d.readRemote, at.node, n)
		return nil
	})
}

// readObject reads from a node's object by the call that o asks for.
func readObject(ctx context.Context, node datapath.Store, ino metadata.Ino, p []byte, off int64, o ReadOpts) (int, error) {
	if o.NoWait {
		if h, ok := node.(datapath.PresentReader); ok {
			return h.ReadIfPresent(ctx, ino, p, off)
		}
		return 0, fmt.Errorf("the node cannot read without waiting: %w", syscall.EAGAIN)
	}
	if dp, ok := node.(datapath.Piper); ok && o.Pipe != nil {
		return dp.ReadPipe(ctx, ino, o.Pipe, p, off)
	}
	return node.ReadAt(ctx, ino, p, off)
}

// readVerified is readObject that also verifies the checksum of the bytes if the configuration asks for it.
func (d *Data) readVerified(ctx context.Context, node datapath.Store, ino metadata.Ino, p []byte, off int64, o ReadOpts) (int, error) {
	s, ok := node.(datapath.SummedReader)
	if !ok || !d.cfg.VerifyReads || o.NoWait {
		return readObject(ctx, node, ino, p, off, o)
	}
	n, err := s.ReadSummed(ctx, ino, p, off)
	if errors.Is(err, syscall.EBADMSG) {
		d.cfg.Log.WithError(err).WithField("inode", ino.String()).Warn("checksum mismatch in bytes from another node: reading them again")
	}
	return n, err
}
