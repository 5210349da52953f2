package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// runDir stages the items of a part of a directory, several files concurrently.
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
	// A failed put has canceled the readers: its error is the cause.
	if e := push.wait(); e != nil && (err == nil || gctx.Err() != nil && isCanceled(err)) {
		return e
	}
	return err
}

func (s *Share) item(ctx context.Context, push *pusher, it *source.Item) error {
	if it.Hardlink != "" {
		return s.rec.Add(s.placer.Record(it, nil))
	}
	o, err := s.place(it)
	if err != nil {
		return err
	}
	rec := s.placer.Record(it, o)
	if it.Is(source.TypeRegular) {
		if s.cfg.Plan.OnError == stagein.OnErrorSkip {
			rec.Sum, err = s.tryFile(ctx, it, o)
		} else {
			rec.Sum, err = s.copyFile(ctx, push, it, o)
		}
		if err != nil {
			return s.skip(s.sourcePath(it), err)
		}
		s.count.files.Add(1)
	}
	return s.rec.Add(rec)
}

// sourcePath returns the path of an item of a directory source.
func (s *Share) sourcePath(it *source.Item) string {
	return strings.TrimSuffix(string(s.cfg.Plan.Source), "/") + "/" + it.Path
}

// tryFile is copyFile, but removes the data that it stored if the file cannot be read.
func (s *Share) tryFile(ctx context.Context, it *source.Item, o *stagein.Object) ([16]byte, error) {
	push := s.newPusher(ctx)
	sum, err := s.copyFile(ctx, push, it, o)
	if err != nil {
		push.cancel()
	}
	if e := push.wait(); e != nil && (err == nil || isCanceled(err)) {
		return sum, e
	}
	if err != nil {
		return sum, errors.Join(err, s.takeBack(ctx, o))
	}
	return sum, nil
}

// copyFile reads a file once, front to back, and stores it.
func (s *Share) copyFile(ctx context.Context, push *pusher, it *source.Item, o *stagein.Object) (sum [16]byte, err error) {
	path := s.sourcePath(it)
	was := source.Info{Size: it.Size, Mtime: it.Mtime}
	f, err := s.open(path, was)
	if err != nil {
		return sum, err
	}
	defer f.Close() // read only
	m := archive.Hasher{Size: it.Size}
	if err := s.copyBytes(ctx, f, path, it.Size, func(p *source.Piece) error {
		m.Write(p.B)
		err := push.put(o, p.B, p, p.Off)
		push.flush() // a buffer holds at most one file
		return err
	}); err != nil {
		return sum, err
	}
	if err := archive.CheckUnchanged(f, path, was); err != nil {
		return sum, fmt.Errorf("while it was read: %w", err)
	}
	return m.Sum128(), nil
}

// copyBytes calls each with the size bytes of f, in order. It reads ahead in a large file.
func (s *Share) copyBytes(ctx context.Context, f source.File, path string, size int64, each func(*source.Piece) error) error {
	if size == 0 {
		return nil
	}
	if size <= int64(s.pool.Size()) {
		p, err := s.pool.Get(ctx)
		if err != nil {
			return err
		}
		defer p.Release()
		if err := p.Fill(f, path, 0, size); err != nil {
			return err
		}
		return each(p)
	}
	from := source.ReadRegion(ctx, f, path, 0, size, s.pool, archive.ReadAhead)
	defer from.Close()
	for {
		p, err := from.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		err = each(p)
		p.Release()
		if err != nil {
			return err
		}
	}
}
