package scan

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// beside is the suffix of an index in the archive's directory.
const beside = ".bivouac-index"

// indexPaths returns where to look for an index of the archive, and where to keep a new one; "": nowhere.
func indexPaths(o *stagein.Options, archive string, several bool) (at []string, keep string) {
	base := filepath.Base(archive)
	inDir := fmt.Sprintf("%s-%016x.index", base[:min(len(base), 128)], xxh3.HashString(archive))
	next := archive + beside
	cached := ""
	if o.Cache != "" {
		cached = filepath.Join(string(o.Cache), inDir)
	}
	switch o.Index {
	case stagein.IndexOff:
		return nil, ""
	case stagein.IndexBeside:
		return []string{next}, next
	case stagein.IndexCache:
		return []string{cached}, cached
	case stagein.IndexAuto:
		return []string{cached, next}, cached
	}
	p := string(o.Index)
	if st, err := os.Stat(p); several || err == nil && st.IsDir() {
		p = filepath.Join(p, inDir)
	}
	return []string{p}, p
}

// index identifies the archive that an index must belong to, and where the index is.
type index struct {
	archive string
	info    source.Info // of the archive
	user    uint32
	paths   []string // "": none
	keep    string   // "": no index is kept
}

// load returns the members in the index at path. Faults of the archive itself are left to the scan.
func (a *archiveScan) load(cfg *Config, path string) (*itemList, error) {
	f, size, err := a.index.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // read only
	h, err := a.open(cfg)
	if err != nil {
		return nil, err
	}
	items, end := newItemList(cfg.Scratch), int64(0)
	archive := archive.CountReads(h.f, &h.read)
	key, err := tar.KeyOf(archive, h.name, a.found.Info)
	if err == nil {
		err = tar.ReadIndex(io.NewSectionReader(f, 0, size), size, key, func(it *source.Item) error {
			end = it.Off + source.Padded(it.Stored())
			return items.add(it, 0)
		})
	}
	if err == nil {
		err = a.index.ends(archive, end)
	}
	if err = a.end(h, err); err != nil {
		items.close()
	}
	return items, err
}

// open opens an index. It must belong to the user, to the owner of the archive, or to root.
func (x *index) open(path string) (source.File, int64, error) {
	f, err := source.OS{}.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if o := info.UID; err == nil && o != x.user && o != x.info.UID && o != 0 {
		err = fmt.Errorf("belongs to user %d, but not to you or to the owner of the archive: %w", o, syscall.EPERM)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size, nil
}

// ends checks that no member follows the index's last one, which ends at off.
func (x *index) ends(archive io.ReaderAt, off int64) error {
	b := make([]byte, source.BlockSize)
	if x.info.Size-off < source.BlockSize {
		return nil
	}
	if err := source.ReadFull(archive, x.archive, b, off); err != nil {
		return err
	}
	if !bytes.Equal(b, make([]byte, source.BlockSize)) {
		return fmt.Errorf("the archive continues at offset %d, where its index ends: %w", off, syscall.EIO)
	}
	return nil
}

func (x *index) keeps() bool { return x != nil && x.keep != "" }

// NewIndexes are the indexes that a scan has made and that are not yet saved.
type NewIndexes []newIndex

type newIndex struct {
	*index
	key   tar.IndexKey
	items *itemList
}

// Save saves the indexes for the next job. It only logs failures.
func (all NewIndexes) Save(log *logrus.Entry) {
	defer all.Close()
	for _, n := range all {
		if err := n.save(); err != nil {
			log.WithError(err).WithField("index", n.keep).Warn("index not saved, so the next job scans again; give index=PATH where it can be written")
			return
		}
	}
	if len(all) > 0 {
		log.WithFields(logrus.Fields{"archives": len(all), "index": all[0].keep}).Info("index saved for the next job")
	}
}

// Close drops the lists from which the indexes are made.
func (all NewIndexes) Close() {
	for _, n := range all {
		n.items.close()
	}
}

// save writes the index under a temporary name, then renames it.
func (n *newIndex) save() error {
	dir, mode := filepath.Dir(n.keep), uint32(0o600)
	if n.keep == n.archive+beside {
		mode |= n.info.Mode & 0o644 // for all readers of the archive
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".bivouac-*.tmp")
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<18)
	if err = tar.WriteIndex(w, n.key, n.items.each); err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Chmod(os.FileMode(mode))
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), n.keep)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error counts
	}
	return err
}

// lookUp takes the members of archives from their indexes. It logs an index that cannot be used; that archive is
// scanned.
func (cfg *Config) lookUp(ctx context.Context, all []archiveScan) error {
	if cfg.Request.Index == stagein.IndexOff {
		return nil
	}
	err := each(ctx, all, func(_ context.Context, a *archiveScan) error {
		cfg.lookUpOne(a, len(all) > 1)
		return nil
	})
	archives, members := 0, 0
	for i := range all {
		if all[i].indexPath != "" {
			archives, members = archives+1, members+all[i].items.count()
		}
	}
	if archives > 0 {
		cfg.Log.WithFields(logrus.Fields{"archives": archives, "members": members}).Info("archives not scanned: their members are in the index")
	}
	return err
}

func (cfg *Config) lookUpOne(a *archiveScan, several bool) {
	if a.found.Kind != source.Tar {
		return
	}
	x := &index{archive: string(a.Path), info: a.found.Info, user: cfg.UID}
	x.paths, x.keep = indexPaths(&cfg.Request.Options, x.archive, several)
	a.index = x
	for _, path := range x.paths {
		items, err := a.load(cfg, path)
		if err == nil {
			a.items, a.indexPath = items, path
			return
		}
		if !errors.Is(err, syscall.ENOENT) {
			cfg.Log.WithError(err).WithField("index", path).Warn("index not usable; the archive is scanned instead")
		}
	}
}
