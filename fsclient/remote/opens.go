package remote

import (
	"context"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

var _ metadata.Opens = (*Store)(nil)

// Open is metadata.Opens. The peer knows by the connection which node asks.
func (s *Store) Open(ctx context.Context, by metadata.Holder, ino metadata.Ino, t metadata.Ticket) (metadata.Attr, error) {
	return s.attr(ctx, wire.OpOpen, &wire.OpenReq{Run: by.Run, Ticket: t, Ino: ino})
}

// CreateOpen is metadata.Opens.
func (s *Store) CreateOpen(ctx context.Context, by metadata.Holder, t metadata.Ticket, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	return s.attr(ctx, wire.OpCreateOpen, &wire.CreateOpenReq{
		Run: by.Run, Ticket: t, CreateReq: wire.CreateReq{Dir: dir, Name: name, New: n},
	})
}

// Closed is metadata.Opens. Many files are several calls.
func (s *Store) Closed(ctx context.Context, by metadata.Holder, files []metadata.Opened) error {
	for len(files) > 0 {
		n := min(len(files), wire.MaxOpened)
		if err := do(ctx, s.c, wire.OpClosed, &wire.ClosedReq{Run: by.Run, Files: files[:n]}, nil); err != nil {
			return err
		}
		files = files[n:]
	}
	return nil
}

// Append is metadata.Opens.
func (s *Store) Append(ctx context.Context, by metadata.Holder, q metadata.Append) (metadata.Place, error) {
	var r wire.PlaceResp
	err := do(ctx, s.c, wire.OpAppend, &wire.AppendReq{Run: by.Run, Req: q}, &r)
	return r.Place, err
}
