package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// blobReq asks for a piece of a file that a node keeps of a dataset's staging:
// a part's items, a share's records, the manifest, or what a fill needs beside it.
type blobReq struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Name    string             `json:"name"`
	Off     int64              `json:"off"`
}

// onBlob answers wire.OpManifest with at most wire.MaxData bytes; none is the end.
func (d *Daemon) onBlob(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	var q blobReq
	if err := node.DecodeJSON(r.Body, &q); err != nil {
		return err
	}
	if !blobName(q.Name) || q.Off < 0 {
		return fmt.Errorf("blob %q: %w", q.Name, syscall.EINVAL)
	}
	f, err := os.Open(filepath.Join(d.stageDir(q.Dataset), q.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("blob %d/%s: %w", q.Dataset, q.Name, syscall.ENOENT)
	}
	if err != nil {
		return fmt.Errorf("blob: %w", err)
	}
	defer f.Close()
	b, err := resp.Alloc(ctx, wire.MaxData)
	if err != nil {
		return fmt.Errorf("blob: %w", err)
	}
	n, err := f.ReadAt(b, q.Off)
	if err != nil && err != io.EOF {
		return fmt.Errorf("blob %d/%s: %w", q.Dataset, q.Name, err)
	}
	resp.Data = b[:n]
	return nil
}

// blobName reports whether name is one of the files of a staging.
func blobName(name string) bool {
	if name == manifestFile || name == originsFile || name == orderFile || name == allSkips || name == passFile {
		return true
	}
	kind, part, _ := strings.Cut(name, "-")
	_, err := strconv.ParseUint(part, 10, 16)
	return err == nil && (kind == "part" || kind == "records" || kind == "skips" || kind == "points" || kind == "sums")
}

// fetch copies a blob of node from into the file path, which appears whole or
// not at all, also if others fetch it at the same time. Until then its name ends as
// removePartials wants it.
func (d *Daemon) fetch(ctx context.Context, from metadata.NodeID, q blobReq, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new")
	if err != nil {
		return err
	}
	err = d.fetchTo(ctx, from, q, f)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // removePartials would
		return fmt.Errorf("%s from node %d: %w", q.Name, from, err)
	}
	return nil
}

func (d *Daemon) fetchTo(ctx context.Context, from metadata.NodeID, q blobReq, w io.Writer) error {
	buf := make([]byte, wire.MaxData)
	c := d.peers.To(from)
	for {
		call := rpc.Call{Op: wire.OpManifest, Body: &wire.JSON{V: q}, Into: buf}
		if err := c.Do(ctx, &call); err != nil {
			return err
		}
		if call.N == 0 {
			return nil
		}
		if _, err := w.Write(buf[:call.N]); err != nil {
			return err
		}
		q.Off += int64(call.N)
	}
}
