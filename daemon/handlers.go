package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
)

// parser is a message that can be read from a frame.
type parser[T any] interface {
	*T
	Parse([]byte) error
}

// appender is a message that can be written to a frame.
type appender interface{ Append([]byte) []byte }

// handle makes a handler of a function on messages. A reply goes out with an
// error too: Create's EEXIST carries what is there.
func handle[T any, P parser[T]](f func(ctx context.Context, q *T) (appender, error)) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		var q T
		if err := P(&q).Parse(r.Body); err != nil {
			return err
		}
		a, err := f(&asker{ctx, r.Peer}, &q)
		if a != nil {
			resp.Body = a.Append(nil)
		}
		return err
	}
}

// handleJSON makes a handler of a function on control messages.
func handleJSON[Q, R any](f func(ctx context.Context, peer metadata.NodeID, q *Q) (R, error)) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		var q Q
		if err := json.Unmarshal(r.Body, &q); err != nil {
			return fmt.Errorf("%v: %v: %w", r.Op, err, syscall.EINVAL)
		}
		a, err := f(ctx, r.Peer, &q)
		if err != nil {
			return err
		}
		b, err := json.Marshal(a)
		if err != nil {
			return fmt.Errorf("%v: %v: %w", r.Op, err, syscall.EIO)
		}
		resp.Body = b
		return nil
	}
}

// callJSON is the other side of handleJSON.
func callJSON(ctx context.Context, c rpc.Caller, op wire.Op, q, reply any) error {
	b, err := json.Marshal(q)
	if err != nil {
		return fmt.Errorf("%v: %w", op, err)
	}
	call := rpc.Call{Op: op, Body: b}
	if err := c.Do(ctx, &call); err != nil {
		return err
	}
	if reply == nil {
		return nil
	}
	if err := json.Unmarshal(call.Reply, reply); err != nil {
		return fmt.Errorf("%v: %v: %w", op, err, syscall.EPROTO)
	}
	return nil
}

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

func attrReply(a metadata.Attr, err error) (appender, error) {
	if err != nil && a.Ino == 0 {
		return nil, err
	}
	return &wire.AttrResp{Attr: a}, err
}

func entryReply(e *metadata.Entry, err error) (appender, error) {
	if err != nil {
		return nil, err
	}
	return &wire.EntryResp{Entry: e}, nil
}

func (d *Daemon) metaHandlers() map[wire.Op]rpc.Handler {
	m := d.leased
	return map[wire.Op]rpc.Handler{
		wire.OpLookup: handle(func(ctx context.Context, q *wire.DirName) (appender, error) {
			e, err := m.Lookup(ctx, q.Dir, q.Name)
			return entryReply(&e, err)
		}),
		wire.OpCreate: handle(func(ctx context.Context, q *wire.CreateReq) (appender, error) {
			return attrReply(m.Create(ctx, q.Dir, q.Name, q.New))
		}),
		wire.OpUnlink: handle(func(ctx context.Context, q *wire.DirName) (appender, error) {
			e, err := m.Unlink(ctx, q.Dir, q.Name)
			return entryReply(&e, err)
		}),
		wire.OpRename: handle(func(ctx context.Context, q *wire.RenameReq) (appender, error) {
			return entryReply(m.Rename(ctx, q.Rename))
		}),
		wire.OpReadDir: handle(func(ctx context.Context, q *wire.ReadDirReq) (appender, error) {
			if q.Limit > wire.MaxEntries { // more may not fit in a reply
				return nil, fmt.Errorf("read of %d entries: %w", q.Limit, syscall.EINVAL)
			}
			es, err := m.ReadDir(ctx, q.Dir, q.After, int(q.Limit))
			if err != nil {
				return nil, err
			}
			return &wire.EntriesResp{Entries: es}, nil
		}),
		wire.OpGetattr: handle(func(ctx context.Context, q *wire.InoReq) (appender, error) {
			return attrReply(m.Getattr(ctx, q.Ino))
		}),
		wire.OpSetattr: handle(func(ctx context.Context, q *wire.SetattrReq) (appender, error) {
			return attrReply(m.Setattr(ctx, q.Ino, q.Change))
		}),
		wire.OpReadlink: handle(func(ctx context.Context, q *wire.InoReq) (appender, error) {
			s, err := m.Readlink(ctx, q.Ino)
			return &wire.StringResp{S: s}, err
		}),
		wire.OpReap: handle(func(ctx context.Context, q *wire.InoReq) (appender, error) {
			return nil, m.Reap(ctx, q.Ino)
		}),
		wire.OpMkdir: handle(func(ctx context.Context, q *wire.CreateReq) (appender, error) {
			return attrReply(m.Mkdir(ctx, q.Dir, q.Name, q.New))
		}),
		wire.OpRmdir: handle(func(ctx context.Context, q *wire.DirName) (appender, error) {
			return nil, m.Rmdir(ctx, q.Dir, q.Name)
		}),
		wire.OpLink: handle(func(ctx context.Context, q *wire.LinkReq) (appender, error) {
			return attrReply(m.Link(ctx, q.Ino, q.Dir, q.Name))
		}),
	}
}

func (d *Daemon) dataHandlers() map[wire.Op]rpc.Handler {
	s := d.data
	return map[wire.Op]rpc.Handler{
		wire.OpRead:        d.handleRead,
		wire.OpReadHere:    d.handleReadHere,
		wire.OpReadSummed:  d.handleReadSummed,
		wire.OpWriteSummed: d.handleWriteSummed,
		wire.OpParcels:     d.handleParcels,
		wire.OpWrite: func(ctx context.Context, r *rpc.Request, _ *rpc.Response) error {
			var q wire.WriteReq
			if err := q.Parse(r.Body); err != nil {
				return err
			}
			return d.write(ctx, q.Ino, r.Data, q.Off)
		},
		wire.OpSync: handle(func(ctx context.Context, q *wire.InoReq) (appender, error) {
			return nil, s.Sync(ctx, q.Ino)
		}),
		wire.OpTruncate: handle(func(ctx context.Context, q *wire.TruncateReq) (appender, error) {
			return nil, s.Truncate(ctx, q.Ino, q.Size)
		}),
		wire.OpRemoveObject: handle(func(ctx context.Context, q *wire.InoReq) (appender, error) {
			return nil, s.Remove(ctx, q.Ino)
		}),
		wire.OpSpace: func(ctx context.Context, _ *rpc.Request, resp *rpc.Response) error {
			sp, err := s.Space(ctx)
			if err == nil {
				resp.Body = (&wire.SpaceResp{Space: sp}).Append(nil)
			}
			return err
		},
	}
}

// readable is the read that r asks for, when what it is of is here and may be sent.
func (d *Daemon) readable(ctx context.Context, r *rpc.Request) (q wire.ReadReq, err error) {
	if err := q.Parse(r.Body); err != nil {
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
