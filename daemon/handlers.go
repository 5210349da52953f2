package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/stagein"
)

// inline says which ops are answered on the connection's reading goroutine:
// those that only look something up.
func inline(op wire.Op) bool {
	switch op {
	case wire.OpLookup, wire.OpGetattr, wire.OpReadlink, wire.OpGetxattr, wire.OpLookupLease, wire.OpGetattrLease, wire.OpRevoke:
		return true
	}
	return false
}

// alone says which are, too, while nothing else is under way on the
// connection: the next one waits no longer than for one read of the disk.
func alone(op wire.Op) bool { return op == wire.OpRead }

// handlers is what this node answers.
func (d *Daemon) handlers() node.Handlers {
	h := d.meta.Handlers()
	for _, part := range []node.Handlers{home.Redirects(d.openHandlers()), d.dataHandlers(), d.controlHandlers()} {
		maps.Copy(h, part)
	}
	return h
}

func (d *Daemon) dataHandlers() map[wire.Op]rpc.Handler {
	s := d.data
	return map[wire.Op]rpc.Handler{
		wire.OpRead:          d.handleRead,
		wire.OpReadIfPresent: d.handleReadHere,
		wire.OpReadSummed:    d.handleReadSummed,
		wire.OpWriteSummed:   d.handleWriteSummed,
		wire.OpPutPieces:     d.handleParcels,
		wire.OpWrite: func(ctx context.Context, r *rpc.Request, _ *rpc.Response) error {
			var q wire.WriteReq
			if err := wire.Parse(r.Body, &q); err != nil {
				return err
			}
			return d.write(ctx, q.Ino, r.Data, q.Off)
		},
		wire.OpSync: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			return nil, s.Sync(ctx, q.Ino)
		}),
		wire.OpTruncate: node.Handle(func(ctx context.Context, q *wire.TruncateReq) (node.Appender, error) {
			return nil, s.Truncate(ctx, q.Ino, q.Size)
		}),
		wire.OpRemoveObject: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			return nil, s.Remove(ctx, q.Ino)
		}),
		wire.OpSpace: func(ctx context.Context, _ *rpc.Request, resp *rpc.Response) error {
			sp, err := s.Space(ctx)
			if err == nil {
				resp.Body = &wire.SpaceResp{Space: sp}
			}
			return err
		},
	}
}

// readable is the read that r asks for, when what it is of is here and may be sent.
func (d *Daemon) readable(ctx context.Context, r *rpc.Request) (q wire.ReadReq, err error) {
	if err := wire.Parse(r.Body, &q); err != nil {
		return q, err
	}
	if q.Len > wire.MaxData {
		return q, fmt.Errorf("read of %d bytes: %w", q.Len, syscall.EINVAL)
	}
	if err := d.needFor(ctx, q.Ino, q.Off, int64(q.Len)); err != nil {
		return q, err
	}
	return q, d.serve(ctx, q.Ino, int64(q.Len))
}

func (d *Daemon) handleRead(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	q, err := d.readable(ctx, r)
	if errors.Is(err, stagein.ErrDisplaced) {
		return d.sendDisplaced(ctx, &q, resp)
	}
	if err != nil {
		return err
	}
	disk := ctx
	if ctx.Err() != nil { // inline, where only the disk of this node may be waited for
		disk = d.ctx
	}
	if lent, err := d.lend(disk, &q, resp); lent || err != nil {
		return err
	}
	return d.readInto(ctx, disk, &q, resp)
}

// readInto answers a read from a buffer. ctx is the handler's, disk that of the read.
func (d *Daemon) readInto(ctx, disk context.Context, q *wire.ReadReq, resp *rpc.Response) error {
	b, err := resp.Alloc(ctx, int(q.Len))
	if err != nil {
		return err
	}
	n, err := d.data.ReadAt(disk, q.Ino, b, q.Off)
	resp.Data = b[:n]
	return err
}

// lendFrom is from how many bytes on the kernel copies better by itself.
const lendFrom = 16 << 10

// lend answers a read from the file of a sealed object, which does not shrink
// while it is sent.
func (d *Daemon) lend(ctx context.Context, q *wire.ReadReq, resp *rpc.Response) (bool, error) {
	if !q.Ino.Sealed() || q.Len < lendFrom || q.Off < 0 {
		return false, nil
	}
	f, done, err := d.data.Lend(ctx, q.Ino)
	if f == nil || err != nil {
		return false, err
	}
	resp.File, resp.Off, resp.Len, resp.Done = f, q.Off, int64(q.Len), done
	return true, nil
}
