package dataset

import (
	"context"
	"encoding/hex"
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
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// Files in a dataset's staging directory that other nodes may fetch.
const (
	Manifest = "manifest"
	Origins  = "origins" // the sources of the dataset's files
	Order    = "order"   // the order in which they are read, if the user gave a list
	AllSkips = "skips"   // the entries that the dataset leaves out, one stagein.Skip as JSON per line
	State    = "state"   // the progress of the coordinator of a single pass

	PieceSums = "piecesums" // the checksums of a node's files: its journal

	journal = "journal" // the files that are complete on this node; never fetched under this name
)

// Files of one part of a stage-in that other nodes may fetch.
func PartFile(part int) string    { return "part-" + strconv.Itoa(part) }    // the items to read
func RecordsFile(part int) string { return "records-" + strconv.Itoa(part) } // the records of the files found
func SkipsFile(part int) string   { return "skips-" + strconv.Itoa(part) }   // the entries left out

// SumsFile returns the name of the file with the SHA-256 of the files that a node has verified.
func SumsFile(id metadata.NodeID) string { return "sums-" + strconv.Itoa(int(id)) }

// served reports whether other nodes may fetch the file name.
func served(name string) bool {
	switch name {
	case Manifest, Origins, Order, AllSkips, State, PieceSums:
		return true
	}
	kind, part, _ := strings.Cut(name, "-")
	if kind == "plan" { // plan files are named by their digest
		_, err := hex.DecodeString(part)
		return err == nil && part != ""
	}
	_, err := strconv.ParseUint(part, 10, 16)
	return err == nil && (kind == "part" || kind == "records" || kind == "skips" || kind == "points" || kind == "sums")
}

// newSuffix ends the name of an incomplete file.
const newSuffix = ".new"

// Files manages the staging directories of this node: one per dataset, with the files of its stage-in, its manifest and
// its journal.
type Files struct {
	root string
	n    node.Node
}

// NewFiles manages the staging directories below root.
func NewFiles(root string, n node.Node) *Files { return &Files{root, n} }

// Dir returns the staging directory of a dataset.
func (f *Files) Dir(id metadata.DatasetID) string {
	return filepath.Join(f.root, strconv.Itoa(int(id)))
}

// Path returns the path of a file in the staging directory of a dataset.
func (f *Files) Path(id metadata.DatasetID, name string) string {
	return filepath.Join(f.Dir(id), name)
}

// Scratch returns the directory for sorting the records of a dataset.
func (f *Files) Scratch(id metadata.DatasetID) *manifest.Scratch {
	return &manifest.Scratch{Dir: f.Dir(id)}
}

// Remove removes the files that match the patterns from a dataset's staging directory.
func (f *Files) Remove(id metadata.DatasetID, patterns ...string) {
	for _, pattern := range patterns {
		paths, _ := filepath.Glob(f.Path(id, pattern)) // the pattern is valid
		for _, path := range paths {
			if err := os.RemoveAll(path); err != nil {
				f.n.Log().WithError(err).Debug("file of a stage-in not removed")
			}
		}
	}
}

// Handlers returns the handlers for calls from other nodes.
func (f *Files) Handlers() node.Handlers { return node.Handlers{wire.OpManifest: f.onBlob} }

// blobRequest asks for a piece of a file in a staging directory.
type blobRequest struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Name    string             `json:"name"`
	Off     int64              `json:"off"`
}

// onBlob answers wire.OpManifest with at most wire.MaxData bytes; an empty answer means the end of the file.
func (f *Files) onBlob(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	var q blobRequest
	if err := node.DecodeJSON(r.Body, &q); err != nil {
		return err
	}
	if !served(q.Name) || q.Off < 0 {
		return fmt.Errorf("file %.200q: %w", q.Name, syscall.EINVAL)
	}
	name := q.Name
	if name == PieceSums {
		name = journal
	}
	file, err := os.Open(f.Path(q.Dataset, name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("file %d/%s: %w", q.Dataset, q.Name, syscall.ENOENT)
	}
	if err != nil {
		return err
	}
	defer file.Close() // read only
	b, err := resp.Alloc(ctx, wire.MaxData)
	if err != nil {
		return fmt.Errorf("file %d/%s: %w", q.Dataset, q.Name, err)
	}
	n, err := file.ReadAt(b, q.Off)
	if err != nil && err != io.EOF {
		return fmt.Errorf("file %d/%s: %w", q.Dataset, q.Name, err)
	}
	resp.Data = b[:n]
	return nil
}

// Fetch copies the file name of a dataset from a node to path. The file appears atomically, even if several calls fetch
// it at the same time.
func (f *Files) Fetch(ctx context.Context, from metadata.NodeID, id metadata.DatasetID, name, path string) error {
	if !served(name) {
		return fmt.Errorf("file %.200q: %w", name, syscall.EINVAL)
	}
	err := f.create(path, func(w io.Writer) error { return f.copyTo(ctx, from, blobRequest{Dataset: id, Name: name}, w) })
	if err != nil {
		return fmt.Errorf("%s from node %d: %w", name, from, err)
	}
	return nil
}

// Write writes the file name of a dataset. The file appears atomically.
func (f *Files) Write(id metadata.DatasetID, name string, b []byte) error {
	return f.create(f.Path(id, name), func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// create writes the output of fn to the file path, which appears atomically.
func (f *Files) create(path string, fn func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*"+newSuffix)
	if err != nil {
		return err
	}
	err = fn(tmp)
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // the temporary file is not needed any more
	}
	return err
}

func (f *Files) copyTo(ctx context.Context, from metadata.NodeID, q blobRequest, w io.Writer) error {
	buf := make([]byte, wire.MaxData)
	c := f.n.To(from)
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

// pieceSums calls see with the checksum of each piece of a dataset that a node has staged.
func (f *Files) pieceSums(ctx context.Context, id metadata.DatasetID, from metadata.NodeID, see func(p fill.PieceID, sum [16]byte)) error {
	path := f.Path(id, fmt.Sprintf("%s-%d%s", PieceSums, from, newSuffix))
	if err := f.Fetch(ctx, from, id, PieceSums, path); err != nil {
		return err
	}
	defer func() { _ = os.Remove(path) }() // a temporary copy
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() // read only
	return fill.JournalSums(file, see)
}

// FetchAny fetches a file of ds from the coordinator or, failing that, from any other node. If a node that may have it
// could not be reached, the error says so.
func (f *Files) FetchAny(ctx context.Context, ds cluster.Dataset, name string) error {
	path := f.Path(ds.ID, name)
	var err error
	if ds.Coordinator == f.n.Self() {
		_, err = os.Stat(path) // this node made it; if the store was emptied, another node may have it
	} else {
		err = f.Fetch(ctx, ds.Coordinator, ds.ID, name, path)
	}
	if err == nil {
		return nil
	}
	for _, id := range f.n.View().Map.Up() {
		if id == ds.Coordinator || id == f.n.Self() {
			continue
		}
		e := f.Fetch(ctx, id, ds.ID, name, path)
		if e == nil {
			return nil
		}
		if node.Unreachable(e) {
			err = e
		}
	}
	return err
}

// Skips returns the path of the list of entries that ds leaves out, and fetches the list first if necessary.
func (f *Files) Skips(ctx context.Context, ds cluster.Dataset) (string, error) {
	path := f.Path(ds.ID, AllSkips)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if ds.Skipped == 0 || ds.Coordinator == f.n.Self() {
		return os.DevNull, nil
	}
	return path, f.FetchAny(ctx, ds, AllSkips)
}

// Unknown returns the ENOENT for a name that no dataset in all has, or only one that failed.
func Unknown(name string, all []cluster.Dataset) error {
	known := "the job has no dataset"
	for i, ds := range all {
		if ds.Name == name && ds.Phase == cluster.Failed {
			return node.Absent("dataset %s was not staged: %s", name, ds.Error)
		}
		if known += ", " + ds.Name; i == 0 {
			known = "the job has " + ds.Name
		}
	}
	return node.Absent("no dataset is named %q: %s", name, known)
}

// BootID identifies the current boot of this machine; "" if it cannot be read.
func BootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // on error, all boots look the same
	return strings.TrimSpace(string(b))
}
