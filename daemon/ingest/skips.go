package ingest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
)

// skipList collects and counts the entries that a dataset leaves out.
type skipList struct {
	c   *Coordinator
	ctx context.Context
	f   *os.File
	w   *bufio.Writer
	n   int64
	g   errgroup.Group // removes the stored data of left-out entries; never fails
}

// beginSkips starts with the entries that the plan and the parts left out; nil if skipping is off.
func (c *Coordinator) beginSkips(ctx context.Context) (*skipList, error) {
	if c.req.OnError != stagein.OnErrorSkip {
		return nil, nil
	}
	f, err := os.Create(c.path(dataset.AllSkips))
	if err != nil {
		return nil, fmt.Errorf("stage-in: %w", err)
	}
	l := &skipList{c: c, ctx: ctx, f: f, w: bufio.NewWriter(f)}
	l.g.SetLimit(16)
	if err := l.gather(); err != nil {
		_ = f.Close() // report the first error
		return nil, err
	}
	return l, nil
}

func (l *skipList) gather() error {
	for _, s := range l.c.plan.Skips {
		if err := l.add(s); err != nil {
			return err
		}
	}
	for i := range l.c.plan.Parts {
		more, err := copyLines(l.w, l.c.partPath(l.c.plan.Parts[i].Node, dataset.SkipsFile(i)))
		if l.n += more; err != nil {
			return fmt.Errorf("stage-in: list of skipped files: %w", err)
		}
	}
	return nil
}

func (l *skipList) add(s stagein.Skip) error {
	b, err := json.Marshal(s)
	if err == nil {
		_, err = l.w.Write(append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	l.n++
	return nil
}

// leaveOut skips a record that does not fit the tree, and removes its file.
func (l *skipList) leaveOut(r *manifest.Record, why error) error {
	if err := l.add(l.c.plan.LeftOut(r, why)); err != nil {
		return err
	}
	if a := &r.Attr; r.Hardlink == "" && a.Size > 0 && a.Layout.Kind != metadata.Overflow {
		ino, nodes := a.Ino, l.c.plan.Map.Order(a.Ino, a.Layout)
		l.g.Go(func() error { l.remove(ino, nodes); return nil })
	}
	return l.ctx.Err()
}

func (l *skipList) remove(ino metadata.Ino, nodes []metadata.NodeID) {
	t := l.c.s.cfg.Data.Stores.Since(l.c.plan.Map.Epoch)
	for _, id := range nodes {
		if err := t.Remove(l.ctx, id, ino); err != nil {
			l.c.log().WithError(err).WithField("inode", ino).Warn("object of a skipped file not removed: it takes space until the job ends")
		}
	}
}

// end completes the list and counts its entries.
func (l *skipList) end() error {
	if l == nil {
		return nil
	}
	_ = l.g.Wait() // no function fails
	l.c.ds.Skipped = l.n
	if err := errors.Join(l.w.Flush(), l.f.Close()); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	return nil
}

// copyLines copies a file and counts its lines.
func copyLines(w io.Writer, path string) (n int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close() // read only
	for r := bufio.NewReader(f); ; n++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if _, err := w.Write(line); err != nil {
			return n, err
		}
	}
}
