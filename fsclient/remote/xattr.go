package remote

import (
	"context"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// Getxattr implements metadata.Xattrs.
func (s *Store) Getxattr(ctx context.Context, ino metadata.Ino, name string) ([]byte, error) {
	var r wire.BytesResp
	err := do(ctx, s.c, wire.OpGetxattr, &wire.XattrReq{Ino: ino, Name: name}, &r)
	return r.B, err
}

// Setxattr implements metadata.Xattrs.
func (s *Store) Setxattr(ctx context.Context, ino metadata.Ino, x metadata.Xattr) error {
	return do(ctx, s.c, wire.OpSetxattr, &wire.SetxattrReq{Ino: ino, Xattr: x}, nil)
}

// Listxattr implements metadata.Xattrs.
func (s *Store) Listxattr(ctx context.Context, ino metadata.Ino) ([]string, error) {
	var r wire.NamesResp
	err := do(ctx, s.c, wire.OpListxattr, &wire.InoReq{Ino: ino}, &r)
	return r.Names, err
}

// Removexattr implements metadata.Xattrs.
func (s *Store) Removexattr(ctx context.Context, ino metadata.Ino, name string) error {
	return do(ctx, s.c, wire.OpRemovexattr, &wire.XattrReq{Ino: ino, Name: name}, nil)
}
