package stagein

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// runDir stages the items of a part of a directory, several files at a time.
func (s *Share) runDir(ctx context.Context) error {
	push := s.newPusher(ctx)
	g, gctx := errgroup.WithContext(push.ctx)
	g.SetLimit(max(s.cfg.Workers/2, 1))
	for i := range s.cfg.Part.Items {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error { return s.item(gctx, push, &s.cfg.Part.Items[i]) })
	}
	err := g.Wait()
	if err != nil {
		push.cancel()
	}
	// A Put that failed ended the readers, so it is the one that counts.
	if e := push.wait(); e != nil && (err == nil || gctx.Err() != nil && isCanceled(err)) {
		return e
	}
	return err
}

func (s *Share) item(ctx context.Context, push *pusher, it *source.Item) error {
	if it.Hardlink != "" {
		return s.rec.add(s.recordOf(it, nil))
	}
	o, err := s.place(it)
	if err != nil {
		return err
	}
	rec := s.recordOf(it, o)
	if it.Is(source.TypeRegular) {
		if rec.Sum, err = s.copyFile(ctx, push, it, o); err != nil {
			return err
		}
		s.count.files.Add(1)
	}
	return s.rec.add(rec)
}

// copyFile reads a file once, from front to end, and stores it.
func (s *Share) copyFile(ctx context.Context, push *pusher, it *source.Item, o *object) (sum [16]byte, err error) {
	path := strings.TrimSuffix(string(s.cfg.Plan.Source), "/") + "/" + it.Path
	was := source.Info{Size: it.Size, Mtime: it.Mtime}
	f, err := s.open(path, was)
	if err != nil {
		return sum, err
	}
	defer f.Close() // read only
	m := summer{size: it.Size}
	for off := int64(0); off < it.Size; {
		p, err := s.pool.Get(ctx)
		if err != nil {
			return sum, err
		}
		if err = p.Fill(f, path, off, it.Size-off); err == nil {
			m.write(p.B)
			err = push.put(o, p.B, p, off)
			off = p.End()
		}
		p.Release()
		if err != nil {
			return sum, err
		}
	}
	if err := unchanged(f, path, was); err != nil {
		return sum, fmt.Errorf("while it was read: %w", err)
	}
	return m.sum128(), nil
}
