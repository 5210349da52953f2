package daemon

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/node"
)

// postVerify has all nodes read a dataset again, and waits.
func (d *Daemon) postVerify(w http.ResponseWriter, r *http.Request) {
	var s VerifySpec
	if !readJSON(w, r, &s) {
		return
	}
	res, err := d.Verify(r.Context(), s)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, res)
}

// getSums answers GET /v1/sums?name=N with what the last verification that listed
// the SHA-256 of the files of N wrote, node after node.
func (d *Daemon) getSums(w http.ResponseWriter, r *http.Request) {
	ds, ok := active(d.View(), r.FormValue("name"))
	if !ok {
		writeError(w, fmt.Errorf("no dataset is named %q: %w", r.FormValue("name"), syscall.EINVAL))
		return
	}
	var paths []string
	for _, id := range node.Participants(d.View().Map) {
		path := filepath.Join(d.stageDir(ds.ID), sumsFile(id))
		if id != d.job.Self {
			if err := d.fetch(r.Context(), id, blobReq{Dataset: ds.ID, Name: sumsFile(id)}, path); err != nil {
				writeError(w, err)
				return
			}
		}
		paths = append(paths, path)
	}
	w.Header().Set("Content-Type", "text/plain")
	for _, path := range paths {
		if err := copyFile(w, path); err != nil {
			d.log.WithError(err).Warn("list of checksums")
			panic(http.ErrAbortHandler) // half a list must not look whole
		}
	}
}

func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // read only
	_, err = io.Copy(w, f)
	return err
}

// Verify has all nodes read a dataset again, and waits.
func (c *Ctl) Verify(ctx context.Context, s VerifySpec) (VerifyResult, error) {
	var r VerifyResult
	return r, c.do(ctx, http.MethodPost, "/v1/verify", s, &r)
}

// Sums writes the SHA-256 of every file of the dataset name to w, as the last
// Verify that was to list them found them.
func (c *Ctl) Sums(ctx context.Context, name string, w io.Writer) error {
	return c.copy(ctx, "/v1/sums?name="+url.QueryEscape(name), w)
}
