package remote

import (
	"context"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

var _ metadata.Sections = (*Store)(nil)

// MakeSection is metadata.Sections.
func (s *Store) MakeSection(ctx context.Context, n metadata.NewSection) error {
	return do(ctx, s.c, wire.OpSectionMake, wire.SectionMakeReq{NewSection: n}, nil)
}

// FillSection is metadata.Sections. At most wire.MaxEntries go with one call.
func (s *Store) FillSection(ctx context.Context, sec metadata.Section, es []metadata.Entry) error {
	for len(es) > 0 {
		n := min(len(es), wire.MaxEntries)
		if err := do(ctx, s.c, wire.OpSectionFill, wire.SectionFillReq{Section: sec, Entries: es[:n]}, nil); err != nil {
			return err
		}
		es = es[n:]
	}
	return nil
}

// ChangeSection is metadata.Sections.
func (s *Store) ChangeSection(ctx context.Context, c metadata.SectionChange) error {
	return do(ctx, s.c, wire.OpSectionChange, wire.SectionChangeReq{SectionChange: c}, nil)
}

// ReportSection is metadata.Sections. The peer knows who calls: by is not sent.
func (s *Store) ReportSection(ctx context.Context, _ metadata.NodeID, r metadata.SectionReport) (metadata.SectionAnswer, error) {
	var a wire.SectionReportResp
	err := do(ctx, s.c, wire.OpSectionReport, wire.SectionReportReq{SectionReport: r}, &a)
	return a.SectionAnswer, err
}

// ReadNames is metadata.Sections. At most wire.MaxEntries come with one call.
func (s *Store) ReadNames(ctx context.Context, dir metadata.Ino, epoch metadata.Epoch, after string, limit int) ([]metadata.Entry, error) {
	return pages(after, limit, func(after string, limit uint32) ([]metadata.Entry, error) {
		var r wire.EntriesResp
		q := wire.NamesReq{Epoch: epoch, ReadDirReq: wire.ReadDirReq{Dir: dir, After: after, Limit: limit}}
		err := do(ctx, s.c, wire.OpNames, q, &r)
		return r.Entries, err
	})
}

// pages makes one listing of several calls, where limit is more than comes with
// one.
func pages(after string, limit int, read func(after string, limit uint32) ([]metadata.Entry, error)) ([]metadata.Entry, error) {
	var all []metadata.Entry
	for len(all) < limit || limit <= 0 {
		ask := min(limit-len(all), wire.MaxEntries)
		es, err := read(after, uint32(max(ask, 0)))
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = es
		} else {
			all = append(all, es...)
		}
		if len(es) < ask || len(es) == 0 {
			break
		}
		after = all[len(all)-1].Name
	}
	return all, nil
}
