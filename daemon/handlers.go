package daemon

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
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

func (d *Daemon) handlers() map[wire.Op]rpc.Handler {
	h := d.metaHandlers()
	for op, f := range d.leaseHandlers() {
		h[op] = f
	}
	for op, f := range d.openHandlers() {
		h[op] = f
	}
	for op, f := range d.lockHandlers() {
		h[op] = f
	}
	for op, f := range d.sectionHandlers() {
		h[op] = f
	}
	for op, f := range d.txHandlers() {
		h[op] = f
	}
	for op, f := range h {
		h[op] = elsewhere(f)
	}
	for op, f := range d.dataHandlers() {
		h[op] = f
	}
	for op, f := range d.shapeHandlers() {
		h[op] = f
	}
	for op, f := range d.xattrHandlers() {
		h[op] = f
	}
	for op, f := range d.controlHandlers() {
		h[op] = f
	}
	return h
}

func attrReply(a metadata.Attr, err error) (node.Appender, error) {
	if err != nil && a.Ino == 0 {
		return nil, err
	}
	return &wire.AttrResp{Attr: a}, err
}

func entryReply(e *metadata.Entry, err error) (node.Appender, error) {
	if err != nil {
		return nil, err
	}
	return &wire.EntryResp{Entry: e}, nil
}

func (d *Daemon) metaHandlers() map[wire.Op]rpc.Handler {
	m := d.leased
	return map[wire.Op]rpc.Handler{
		wire.OpLookup: node.Handle(func(ctx context.Context, q *wire.DirName) (node.Appender, error) {
			e, err := m.Lookup(ctx, q.Dir, q.Name)
			return entryReply(&e, err)
		}),
		wire.OpCreate: node.Handle(func(ctx context.Context, q *wire.CreateReq) (node.Appender, error) {
			return attrReply(m.Create(ctx, q.Dir, q.Name, q.New))
		}),
		wire.OpUnlink: node.Handle(func(ctx context.Context, q *wire.DirName) (node.Appender, error) {
			e, err := m.Unlink(ctx, q.Dir, q.Name)
			return entryReply(&e, err)
		}),
		wire.OpRename: node.Handle(func(ctx context.Context, q *wire.RenameReq) (node.Appender, error) {
			return entryReply(m.Rename(ctx, q.Rename))
		}),
		wire.OpReadDir: node.Handle(func(ctx context.Context, q *wire.ReadDirReq) (node.Appender, error) {
			if q.Limit > wire.MaxEntries { // more may not fit in a reply
				return nil, fmt.Errorf("read of %d entries: %w", q.Limit, syscall.EINVAL)
			}
			es, err := m.ReadDir(ctx, q.Dir, q.After, int(q.Limit))
			if err != nil {
				return nil, err
			}
			return &wire.EntriesResp{Entries: es}, nil
		}),
		wire.OpGetattr: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			return attrReply(m.Getattr(ctx, q.Ino))
		}),
		wire.OpSetattr: node.Handle(func(ctx context.Context, q *wire.SetattrReq) (node.Appender, error) {
			return attrReply(m.Setattr(ctx, q.Ino, q.Change))
		}),
		wire.OpReadlink: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			s, err := m.Readlink(ctx, q.Ino)
			return &wire.StringResp{S: s}, err
		}),
		wire.OpReap: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			return nil, m.Reap(ctx, q.Ino)
		}),
		wire.OpMkdir: node.Handle(func(ctx context.Context, q *wire.CreateReq) (node.Appender, error) {
			return attrReply(m.Mkdir(ctx, q.Dir, q.Name, q.New))
		}),
		wire.OpRmdir: node.Handle(func(ctx context.Context, q *wire.DirName) (node.Appender, error) {
			return nil, m.Rmdir(ctx, q.Dir, q.Name)
		}),
		wire.OpLink: node.Handle(func(ctx context.Context, q *wire.LinkReq) (node.Appender, error) {
			return attrReply(m.Link(ctx, q.Ino, q.Dir, q.Name))
		}),
	}
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
