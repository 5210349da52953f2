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

	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// skipsFile has what a part left out, and allSkips what the dataset lacks: a
// line of JSON, a stagein.Skip, for each.
func skipsFile(part int) string { return "skips-" + strconv.Itoa(part) }

const allSkips = "skips"

// gatherSkips puts together what the plan and the shares left out, and counts it.
func (in *intake) gatherSkips() error {
	if in.req.OnError != stagein.OnErrorSkip {
		return nil
	}
	f, err := os.Create(filepath.Join(in.dir(), allSkips))
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	n, err := in.writeSkips(f)
	if e := f.Close(); err == nil && e != nil {
		err = fmt.Errorf("stage-in: %w", e)
	}
	if err == nil {
		err = in.put(allSkips)
	}
	in.ds.Skipped = n
	return err
}

func (in *intake) writeSkips(f io.Writer) (n int64, err error) {
	for _, s := range in.plan.Skips {
		b, err := json.Marshal(s)
		if err == nil {
			_, err = f.Write(append(b, '\n'))
		}
		if err != nil {
			return n, fmt.Errorf("stage-in: %w", err)
		}
		n++
	}
	for i := range in.plan.Parts {
		more, err := copyLines(f, in.brings(in.plan.Parts[i].Node, skipsFile(i)))
		if n += more; err != nil {
			return n, fmt.Errorf("stage-in: what was left out: %w", err)
		}
	}
	return n, nil
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
