package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
)

// skipsFile has what a part left out, and allSkips what the dataset lacks: a
// line of JSON, a stagein.Skip, for each.
func skipsFile(part int) string { return "skips-" + strconv.Itoa(part) }

const allSkips = "skips"

// skipList is what is left out of a dataset, while it is put together and counted.
type skipList struct {
	in  *intake
	ctx context.Context
	f   *os.File
	w   *bufio.Writer
	n   int64
	g   errgroup.Group // removes what was stored of it; fails never
}

// beginSkips begins with what the plan and the shares left out; nil is that nothing is.
func (in *intake) beginSkips(ctx context.Context) (*skipList, error) {
	if in.req.OnError != stagein.OnErrorSkip {
		return nil, nil
	}
	f, err := os.Create(filepath.Join(in.dir(), allSkips))
	if err != nil {
		return nil, fmt.Errorf("stage-in: %w", err)
	}
	l := &skipList{in: in, ctx: ctx, f: f, w: bufio.NewWriter(f)}
	l.g.SetLimit(16)
	if err := l.gather(); err != nil {
		_ = f.Close() // the first error counts
		return nil, err
	}
	return l, nil
}

func (l *skipList) gather() error {
	for _, s := range l.in.plan.Skips {
		if err := l.add(s); err != nil {
			return err
		}
	}
	for i := range l.in.plan.Parts {
		more, err := copyLines(l.w, l.in.brings(l.in.plan.Parts[i].Node, skipsFile(i)))
		if l.n += more; err != nil {
			return fmt.Errorf("stage-in: what was left out: %w", err)
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

// leave leaves a record out that makes no tree, and what was stored of it.
func (l *skipList) leave(r *manifest.Record, why error) error {
	if err := l.add(l.in.plan.LeftOut(r, why)); err != nil {
		return err
	}
	if a := &r.Attr; r.Hardlink == "" && a.Size > 0 && a.Layout.Kind != metadata.Spilled {
		ino, nodes := a.Ino, l.in.plan.Map.Order(a.Ino, a.Layout)
		l.g.Go(func() error { l.remove(ino, nodes); return nil })
	}
	return l.ctx.Err()
}

func (l *skipList) remove(ino metadata.Ino, nodes []metadata.NodeID) {
	t := target{d: l.in.d, since: l.in.plan.Map.Epoch}
	for _, id := range nodes {
		if err := t.Remove(l.ctx, id, ino); err != nil {
			l.in.d.log.WithError(err).WithFields(map[string]any{"dataset": l.in.ds.Name, "inode": ino}).
				Warn("what was left out keeps its room until the job ends")
		}
	}
}

// end has all of it written and counted; it can be put in its place then.
func (l *skipList) end() error {
	if l == nil {
		return nil
	}
	_ = l.g.Wait() // no function fails
	l.in.ds.Skipped = l.n
	if err := errors.Join(l.w.Flush(), l.f.Close()); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	return nil
}

// copyLines copies a file, and counts its lines.
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

// getSkips answers GET /v1/skips?name=N with what the dataset N lacks, a line of
// JSON for each.
func (d *Daemon) getSkips(w http.ResponseWriter, r *http.Request) {
	ds, ok := active(d.View(), r.FormValue("name"))
	if !ok {
		writeError(w, fmt.Errorf("no dataset is named %q: %w", r.FormValue("name"), syscall.EINVAL))
		return
	}
	path, err := d.skips(r.Context(), ds)
	if err != nil {
		writeError(w, err)
		return
	}
	f, err := os.Open(path)
	if err != nil {
		writeError(w, err)
		return
	}
	defer f.Close() // read only
	w.Header().Set("Content-Type", "application/jsonl")
	_, _ = io.Copy(w, f) // the caller has gone away
}

// skips is the file of what ds lacks, on this node.
func (d *Daemon) skips(ctx context.Context, ds cluster.Dataset) (string, error) {
	path := filepath.Join(d.stageDir(ds.ID), allSkips)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if ds.Skipped == 0 || ds.Coordinator == d.job.Self {
		return os.DevNull, nil
	}
	return path, d.fetchFromAny(ctx, ds, allSkips, path)
}
