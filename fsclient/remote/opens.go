package remote

import (
	"context"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

var (
	_ metadata.Opens       = (*Store)(nil)
	_ metadata.AheadOpener = (*Store)(nil)
)

// Open implements metadata.Opens. The peer knows the calling node from the connection.
func (s *Store) Open(ctx context.Context, by metadata.Holder, ino metadata.Ino, o metadata.Opening) (metadata.Holding, error) {
	var r wire.OpenResp
	err := do(ctx, s.c, wire.OpOpen, &wire.OpenReq{Run: by.Run, Ino: ino, Opening: o}, &r)
	return r.Holding, err
}

// OpenAhead implements metadata.AheadOpener.
func (s *Store) OpenAhead(ctx context.Context, by metadata.Holder, files []metadata.OpenAhead) ([]metadata.Attr, metadata.Run, error) {
	var r wire.OpenAheadResp
	err := do(ctx, s.c, wire.OpOpenAhead, &wire.OpenAheadReq{Run: by.Run, Files: files}, &r)
	return r.Attrs, r.Run, err
}

// CreateOpen implements metadata.Opens.
func (s *Store) CreateOpen(ctx context.Context, by metadata.Holder, o metadata.Opening, dir metadata.Ino, name string, n metadata.New) (metadata.Holding, error) {
	var r wire.OpenResp
	q := wire.CreateOpenReq{Run: by.Run, Opening: o, CreateReq: wire.CreateReq{Dir: dir, Name: name, New: n}}
	err := do(ctx, s.c, wire.OpCreateOpen, &q, &r)
	return r.Holding, err
}

// Closed implements metadata.Opens. Many files take several calls.
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

// Append implements metadata.Opens.
func (s *Store) Append(ctx context.Context, by metadata.Holder, q metadata.Append) (metadata.Place, error) {
	var r wire.PlaceResp
	err := do(ctx, s.c, wire.OpAppend, &wire.AppendReq{Run: by.Run, Req: q}, &r)
	return r.Place, err
}
