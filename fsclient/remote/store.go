package remote

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// Store is the live metadata of another node.
type Store struct {
	c rpc.Caller
}

var _ metadata.NodeStore = (*Store)(nil)

// NewStore returns the metadata of the node that c calls.
func NewStore(c rpc.Caller) *Store { return &Store{c: c} }

// do makes one call; reply may be nil. A reply is parsed after an error too: for EEXIST, the reply of Create has the
// existing inode.
func do(ctx context.Context, c rpc.Caller, op wire.Op, q, reply wire.Message) error {
	call := rpc.Call{Op: op, Body: q, Reply: reply}
	err := c.Do(ctx, &call)
	switch {
	case errors.Is(err, syscall.EREMOTE):
		var r wire.RedirectResp
		if wire.Parse(call.ErrBody, &r) == nil {
			return &r.Redirect
		}
	case err != nil && len(call.ErrBody) > 0 && reply != nil:
		_ = wire.Parse(call.ErrBody, reply) // the call's own error is returned
	}
	return err
}

func (s *Store) attr(ctx context.Context, op wire.Op, q wire.Message) (metadata.Attr, error) {
	var r wire.AttrResp
	err := do(ctx, s.c, op, q, &r)
	return r.Attr, err
}

func (s *Store) entry(ctx context.Context, op wire.Op, q wire.Message) (*metadata.Entry, error) {
	var r wire.EntryResp
	err := do(ctx, s.c, op, q, &r)
	return r.Entry, err
}

// someEntry is entry for calls whose result must not be nil.
func (s *Store) someEntry(ctx context.Context, op wire.Op, q wire.Message) (metadata.Entry, error) {
	e, err := s.entry(ctx, op, q)
	if err != nil {
		return metadata.Entry{}, err
	}
	if e == nil {
		return metadata.Entry{}, fmt.Errorf("reply to %v has no entry: %w", op, syscall.EPROTO)
	}
	return *e, nil
}

// Lookup implements metadata.Namespace.
func (s *Store) Lookup(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	return s.someEntry(ctx, wire.OpLookup, &wire.DirName{Dir: dir, Name: name})
}

// Create implements metadata.Namespace.
func (s *Store) Create(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	a, err := s.attr(ctx, wire.OpCreate, &wire.CreateReq{Dir: dir, Name: name, New: n})
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return metadata.Attr{}, err
	}
	return a, err
}

// Unlink implements metadata.Namespace.
func (s *Store) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	return s.someEntry(ctx, wire.OpUnlink, &wire.DirName{Dir: dir, Name: name})
}

// Rename implements metadata.Namespace.
func (s *Store) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	return s.entry(ctx, wire.OpRename, &wire.RenameReq{Rename: r})
}

// ReadDir implements metadata.Namespace. One call returns at most wire.MaxEntries.
func (s *Store) ReadDir(ctx context.Context, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
	return pages(after, limit, entryName, func(after string, limit uint32) ([]metadata.Entry, error) {
		var r wire.EntriesResp
		err := do(ctx, s.c, wire.OpReadDir, &wire.ReadDirReq{Dir: dir, After: after, Limit: limit}, &r)
		return r.Entries, err
	})
}

// Getattr implements metadata.Inodes.
func (s *Store) Getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	return s.attr(ctx, wire.OpGetattr, &wire.InoReq{Ino: ino})
}

// Setattr implements metadata.Inodes.
func (s *Store) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	return s.attr(ctx, wire.OpSetattr, &wire.SetattrReq{Ino: ino, Change: c})
}

// Readlink implements metadata.Inodes.
func (s *Store) Readlink(ctx context.Context, ino metadata.Ino) (string, error) {
	var r wire.StringResp
	err := do(ctx, s.c, wire.OpReadlink, &wire.InoReq{Ino: ino}, &r)
	return r.S, err
}

// Mkdir implements metadata.Directories.
func (s *Store) Mkdir(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	return s.attr(ctx, wire.OpMkdir, &wire.CreateReq{Dir: dir, Name: name, New: n})
}

// Rmdir implements metadata.Directories.
func (s *Store) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	return do(ctx, s.c, wire.OpRmdir, &wire.DirName{Dir: dir, Name: name}, nil)
}

// Link implements metadata.Directories.
func (s *Store) Link(ctx context.Context, ino, dir metadata.Ino, name string) (metadata.Attr, error) {
	return s.attr(ctx, wire.OpLink, &wire.LinkReq{Ino: ino, Dir: dir, Name: name})
}
