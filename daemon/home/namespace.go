package home

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

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

// tooMany returns EINVAL for a listing whose entries may not fit in a reply.
func tooMany(limit uint32) error {
	if limit > wire.MaxEntries {
		return fmt.Errorf("read of %d entries: %w", limit, syscall.EINVAL)
	}
	return nil
}

func (s *Server) namespaceHandlers() node.Handlers {
	return node.Handlers{
		wire.OpLookup: node.Handle(func(ctx context.Context, q *wire.DirName) (node.Appender, error) {
			e, err := s.Lookup(ctx, q.Dir, q.Name)
			return entryReply(&e, err)
		}),
		wire.OpCreate: node.Handle(func(ctx context.Context, q *wire.CreateReq) (node.Appender, error) {
			return attrReply(s.Create(ctx, q.Dir, q.Name, q.New))
		}),
		wire.OpUnlink: node.Handle(func(ctx context.Context, q *wire.DirName) (node.Appender, error) {
			e, err := s.Unlink(ctx, q.Dir, q.Name)
			return entryReply(&e, err)
		}),
		wire.OpRename: node.Handle(func(ctx context.Context, q *wire.RenameReq) (node.Appender, error) {
			return entryReply(s.Rename(ctx, q.Rename))
		}),
		wire.OpReadDir: node.Handle(func(ctx context.Context, q *wire.ReadDirReq) (node.Appender, error) {
			if err := tooMany(q.Limit); err != nil {
				return nil, err
			}
			es, err := s.ReadDir(ctx, q.Dir, q.After, int(q.Limit))
			if err != nil {
				return nil, err
			}
			return &wire.EntriesResp{Entries: es}, nil
		}),
		wire.OpGetattr: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			return attrReply(s.Getattr(ctx, q.Ino))
		}),
		wire.OpSetattr: node.Handle(func(ctx context.Context, q *wire.SetattrReq) (node.Appender, error) {
			return attrReply(s.Setattr(ctx, q.Ino, q.Change))
		}),
		wire.OpReadlink: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			target, err := s.Readlink(ctx, q.Ino)
			return &wire.StringResp{S: target}, err
		}),
		wire.OpMkdir: node.Handle(func(ctx context.Context, q *wire.CreateReq) (node.Appender, error) {
			return attrReply(s.Mkdir(ctx, q.Dir, q.Name, q.New))
		}),
		wire.OpRmdir: node.Handle(func(ctx context.Context, q *wire.DirName) (node.Appender, error) {
			return nil, s.Rmdir(ctx, q.Dir, q.Name)
		}),
		wire.OpLink: node.Handle(func(ctx context.Context, q *wire.LinkReq) (node.Appender, error) {
			return attrReply(s.Link(ctx, q.Ino, q.Dir, q.Name))
		}),
	}
}
