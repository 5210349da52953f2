package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
)

// build builds the manifest from the records of the parts.
func (c *Coordinator) build(ctx context.Context) error {
	sums, err := stagein.JoinPieces(c.pieces())
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	var readers []*manifest.Reader
	for i := range c.plan.Parts {
		f, err := os.Open(c.partPath(c.plan.Parts[i].Node, dataset.RecordsFile(i)))
		if err != nil {
			return fmt.Errorf("manifest: %w", err)
		}
		defer f.Close() // read only
		r := manifest.NewReader(f)
		r.Sums = sums
		readers = append(readers, r)
	}
	skips, err := c.beginSkips(ctx)
	if err != nil {
		return err
	}
	sum, err := c.writeManifest(readers, skips)
	names := []string{dataset.Manifest}
	if skips != nil {
		names = append(names, dataset.AllSkips)
	}
	if err = errors.Join(err, skips.end()); err == nil {
		err = c.put(names...)
	}
	if err != nil {
		return err
	}
	p, _ := c.progress()
	c.ds.Digest, c.ds.Files, c.ds.Dirs, c.ds.Bytes = sum.Digest, sum.Files, sum.Dirs, sum.Bytes
	c.ds.SourceSize = c.plan.Size
	c.ds.SourceBytes = c.before + p.SourceBytes
	return nil
}

// dirMode is S_IFDIR.
const dirMode = 0o040000

func (c *Coordinator) writeManifest(parts []*manifest.Reader, skips *skipList) (manifest.Summary, error) {
	f, err := os.Create(c.path(dataset.Manifest))
	if err != nil {
		return manifest.Summary{}, fmt.Errorf("manifest: %w", err)
	}
	t, j := now(), c.s.cfg.Job
	root := metadata.Attr{Mode: dirMode | 0o755, UID: j.UID, GID: j.GID, Atime: t, Mtime: t, Ctime: t}
	cfg := manifest.BuildConfig{Dataset: c.ds.ID, Root: root, Scratch: c.s.cfg.Data.Files.Scratch(c.ds.ID)}
	if skips != nil {
		cfg.Leave = skips.leaveOut
	}
	sum, err := manifest.Build(cfg, parts, f)
	if err = cmp.Or(err, f.Close()); err != nil {
		return sum, fmt.Errorf("manifest of %s: %w%s", c.ds.Source, err, c.treeAdvice(err))
	}
	return sum, nil
}

// treeAdvice returns advice for the user about files that do not form a tree.
func (c *Coordinator) treeAdvice(err error) string {
	out := ": leave it out by exclude= or on-error=skip"
	if c.req.Unpack == stagein.UnpackNested {
		out = ": leave it out by exclude="
	}
	is := func(no syscall.Errno) bool { return errors.Is(err, no) }
	switch {
	case is(syscall.EEXIST):
		return out + ", or if archives have names in common, keep them apart by unpack=apart"
	case slices.ContainsFunc([]syscall.Errno{syscall.ENOTDIR, syscall.ENOENT, syscall.EPERM, syscall.ELOOP}, is):
		return out
	}
	return ""
}
