package dataset

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// Server answers other nodes' reads and writes of file data, including those of the live realm.
type Server struct {
	ctx   context.Context // ends when the daemon stops
	log   node.Process
	store *chunkstore.Store
	fence *Fence
	fills *Fills
	check *readCheck
	rate  *rate.Bucket // limits the bytes sent; nil: unlimited
}

// Handlers returns the handlers for calls from other nodes.
func (s *Server) Handlers() node.Handlers {
	return node.Handlers{
		wire.OpRead:          s.onRead,
		wire.OpReadIfPresent: s.onReadIfPresent,
		wire.OpReadMany:      s.onReadMany,
		wire.OpReadSummed:    s.onReadSummed,
		wire.OpWriteSummed:   s.onWriteSummed,
		wire.OpPutPieces:     s.onPutPieces,
		wire.OpWrite:         s.onWrite,
	}
}

// read is a read request of another node, with the location of its bytes.
type read struct {
	wire.ReadReq
	at replicas.Location
}

// readable parses a read request and waits until it can be answered.
func (s *Server) readable(ctx context.Context, r *rpc.Request) (q read, err error) {
	if err := wire.Parse(r.Body, &q.ReadReq); err != nil {
		return q, err
	}
	if q.Len > wire.MaxData {
		return q, fmt.Errorf("read of %d bytes: %w", q.Len, syscall.EINVAL)
	}
	if q.at, err = s.fills.need(ctx, q.Ino, q.Off, int64(q.Len)); err != nil {
		return q, err
	}
	return q, s.admit(ctx, q.Ino, int64(q.Len))
}

var errBusy = errors.New("other readers are served first")

// admit waits until n bytes of ino may be sent to another node. For a file of a dataset it returns EAGAIN if that takes
// long, and the reader retries.
func (s *Server) admit(ctx context.Context, ino metadata.Ino, n int64) error {
	if ino.Sealed() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, waitTime, errBusy)
		defer cancel()
	}
	return s.rate.Take(ctx, n)
}

func (s *Server) onRead(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	q, err := s.readable(ctx, r)
	if errors.Is(err, fill.ErrOverflow) {
		return s.sendOverflow(ctx, &q, resp)
	}
	if err != nil {
		return err
	}
	disk := ctx
	if ctx.Err() != nil { // runs on the connection's goroutine, which may wait only for this node's disk
		disk = s.ctx
	}
	if lent, err := s.lend(disk, &q, resp); lent || err != nil {
		return err
	}
	return s.readInto(ctx, disk, &q, resp)
}

// readInto answers a read from a buffer. ctx is the handler's context, disk that of the disk read.
func (s *Server) readInto(ctx, disk context.Context, q *read, resp *rpc.Response) error {
	b, err := resp.Alloc(ctx, int(q.Len))
	if err != nil {
		return err
	}
	n, err := s.store.ReadAt(disk, q.at.Object, b, q.at.Off)
	resp.Data = b[:n]
	return err
}

// lendFrom is the size in bytes from which sendfile is faster than a copy.
const lendFrom = 16 << 10

// lend answers a read from the file of a sealed object, which does not shrink while it is sent.
func (s *Server) lend(ctx context.Context, q *read, resp *rpc.Response) (bool, error) {
	if !q.Ino.Sealed() || q.Len < lendFrom || q.Off < 0 {
		return false, nil
	}
	f, done, err := s.store.Lend(ctx, q.at.Object)
	if f == nil || err != nil {
		return false, err
	}
	resp.File, resp.Off, resp.Len, resp.Done = f, q.at.Off, int64(q.Len), done
	return true, nil
}

// sendOverflow reads an overflow file of this node from the source and sends it to another node. It returns EAGAIN if
// that takes long.
func (s *Server) sendOverflow(ctx context.Context, q *read, resp *rpc.Response) error {
	x, _ := s.fills.get(q.Ino.Dataset())
	if x == nil {
		return fmt.Errorf("inode %v: the dataset has failed: %w", q.Ino, syscall.EIO)
	}
	err := s.fills.waited(ctx, q.Ino, func(ctx context.Context) error { return x.WarmOverflow(ctx, q.Ino, q.Off, int64(q.Len)) })
	if err == nil {
		err = s.admit(ctx, q.Ino, int64(q.Len))
	}
	if err != nil {
		return err
	}
	b, err := resp.Alloc(ctx, int(q.Len))
	if err != nil {
		return err
	}
	n, err := s.fills.readOverflow(ctx, x, q.Ino, b, q.Off)
	resp.Data = b[:n]
	return err
}

// onReadSummed answers a read with a checksum, with which the reader compares the bytes.
func (s *Server) onReadSummed(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	q, err := s.readable(ctx, r)
	switch {
	case errors.Is(err, fill.ErrOverflow):
		err = s.sendOverflow(ctx, &q, resp)
	case err == nil:
		err = s.sendVerified(ctx, &q, resp)
	}
	if err != nil {
		return err
	}
	resp.Body = &wire.SumResp{Sum: wire.Sum(resp.Data)}
	return nil
}

// onReadIfPresent is onReadSummed for bytes that need no fetch; it returns EAGAIN otherwise.
func (s *Server) onReadIfPresent(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	var q wire.ReadReq
	if err := wire.Parse(r.Body, &q); err != nil {
		return err
	}
	if _, ok := s.fills.present(q.Ino, q.Off, int64(q.Len)); !ok {
		return fmt.Errorf("inode %v is not fetched yet: %w", q.Ino, syscall.EAGAIN)
	}
	return s.onReadSummed(ctx, r, resp)
}

func (s *Server) sendVerified(ctx context.Context, q *read, resp *rpc.Response) error {
	if q.Ino.Sealed() {
		if err := s.check.verify(ctx, q.at, int64(q.Len)); err != nil {
			return err
		}
	}
	return s.readInto(ctx, ctx, q, resp)
}

func (s *Server) onWrite(ctx context.Context, r *rpc.Request, _ *rpc.Response) error {
	var q wire.WriteReq
	if err := wire.Parse(r.Body, &q); err != nil {
		return err
	}
	return s.fence.Write(ctx, q.Ino, r.Data, q.Off)
}

func (s *Server) onWriteSummed(ctx context.Context, r *rpc.Request, _ *rpc.Response) error {
	var q wire.SummedWriteReq
	if err := wire.Parse(r.Body, &q); err != nil {
		return err
	}
	if err := wire.CheckSum(r.Data, q.Sum); err != nil {
		return fmt.Errorf("inode %v at %d: %w", q.Ino, q.Off, err)
	}
	return s.fence.Write(ctx, q.Ino, r.Data, q.Off)
}

// onPutPieces stores small pieces of datasets. A piece that is damaged or finds no room does not prevent the others
// from being stored.
func (s *Server) onPutPieces(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	var q wire.PutPiecesReq
	if err := wire.Parse(r.Body, &q); err != nil {
		return err
	}
	status := make([]syscall.Errno, len(q.Heads))
	err := q.Split(r.Data, func(i int, h *wire.PieceHeader, b []byte) {
		if err := s.putPiece(ctx, h, b); err != nil {
			var known bool
			if status[i], known = rpc.StatusOf(err); !known {
				s.log.Log().WithError(err).WithField("peer", r.Peer).Warn("file of another node not stored, by an error that has no errno: the sender gets EIO")
			}
		}
	})
	resp.Body = &wire.PutPiecesResp{Status: status}
	return err
}

func (s *Server) putPiece(ctx context.Context, h *wire.PieceHeader, b []byte) error {
	if !h.Ino.Sealed() {
		return fmt.Errorf("inode %v belongs to no dataset: %w", h.Ino, syscall.EINVAL)
	}
	if err := h.Check(b); err != nil {
		return err
	}
	return s.fence.Write(ctx, h.Ino, b, h.Off)
}
