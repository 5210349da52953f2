package pebblestore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
)

// Table is the raw sorted table of a dataset. It is filled once and read-only afterwards.
type Table struct {
	s  *core
	ds metadata.DatasetID
}

// Table returns the table of a dataset; it is empty if nothing was ingested.
func (s *core) Table(ds metadata.DatasetID) *Table { return &Table{s: s, ds: ds} }

// Get returns a copy of the value of k; ENOENT if there is none.
func (t *Table) Get(k []byte) ([]byte, error) {
	if err := t.s.begin(); err != nil {
		return nil, err
	}
	defer t.s.end()
	return t.s.get(tableKey(t.ds, k))
}

// Scan calls fn with the pairs of [from, to) in order until fn returns false; a nil to means the end of the table. The
// pairs are valid until fn returns. fn must not call the store.
func (t *Table) Scan(from, to []byte, fn func(k, v []byte) bool) error {
	if err := t.s.begin(); err != nil {
		return err
	}
	defer t.s.end()
	lower, upper := tableKey(t.ds, from), tableEnd(t.ds)
	if to != nil {
		upper = tableKey(t.ds, to)
	}
	if bytes.Compare(lower, upper) >= 0 {
		return nil
	}
	return scan(t.s.db, "table", lower, upper, func(k, v []byte) (bool, error) { return fn(k[3:], v), nil })
}

// Drop empties the table and frees its space.
func (t *Table) Drop() error {
	if err := t.s.begin(); err != nil {
		return err
	}
	defer t.s.end()
	return ioError("drop of a table", t.s.db.Excise(context.Background(), t.span()))
}

func (t *Table) span() pebble.KeyRange {
	return pebble.KeyRange{Start: tableKey(t.ds, nil), End: tableEnd(t.ds)}
}

// Ingest atomically replaces the whole table with the pairs that src yields, whose keys must ascend (EINVAL). src must
// return an error of yield, and must not call the store.
func (t *Table) Ingest(ctx context.Context, src func(yield func(k, v []byte) error) error) error {
	if err := t.s.begin(); err != nil {
		return err
	}
	defer t.s.end()
	in := &ingest{t: t, ctx: ctx}
	err := src(in.add)
	if err == nil {
		err = in.err // in case src ignored it
	}
	if err = cmp.Or(err, in.finishFile(), interrupted(ctx)); err == nil {
		err = in.link()
	}
	for _, f := range in.files {
		_ = t.s.cfg.FS.Remove(f) // fails if the file was ingested; Open cleans up the others
	}
	if err != nil {
		return fmt.Errorf("table of dataset %d: %w", t.ds, err)
	}
	return nil
}

// ingestFileSize is the size of a file of a table, in bytes. The index and key hashes of a file stay in memory while it
// is written.
const ingestFileSize = 16 << 20

// ingest writes the files of one Ingest.
type ingest struct {
	t     *Table
	ctx   context.Context
	w     *sstable.Writer
	files []string
	last  []byte
	n     int
	err   error // the first error of add
}

func (in *ingest) add(k, v []byte) error {
	if in.err == nil {
		in.err = in.add1(k, v)
	}
	return in.err
}

func (in *ingest) add1(k, v []byte) error {
	if in.n > 0 && bytes.Compare(k, in.last) <= 0 {
		return fmt.Errorf("key %x is not behind %x: %w", k, in.last, syscall.EINVAL)
	}
	if in.n++; in.n&1023 == 0 {
		if err := interrupted(in.ctx); err != nil {
			return err
		}
	}
	in.last = append(in.last[:0], k...)
	if in.w != nil && in.w.Raw().EstimatedSize() >= ingestFileSize {
		if err := in.finishFile(); err != nil {
			return err
		}
	}
	if in.w == nil {
		if err := in.newFile(); err != nil {
			return err
		}
	}
	return ioError("table", in.w.Set(tableKey(in.t.ds, k), v))
}

func (in *ingest) newFile() error {
	s := in.t.s
	name := s.tables.next(s)
	f, err := s.cfg.FS.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return ioError("table", err)
	}
	in.files = append(in.files, name)
	o := s.options()
	o.EnsureDefaults()
	in.w = sstable.NewWriter(objstorageprovider.NewFileWritable(f),
		o.MakeWriterOptions(bottomLevel, o.FormatMajorVersion.MaxTableFormat()))
	return nil
}

const bottomLevel = 6

func (in *ingest) finishFile() error {
	if in.w == nil {
		return nil
	}
	err := in.w.Close()
	in.w = nil
	return ioError("table", err)
}

// link turns the files into the table, in one step.
func (in *ingest) link() error {
	db := in.t.s.db
	if len(in.files) == 0 {
		return ioError("table", db.Excise(in.ctx, in.t.span()))
	}
	_, err := db.IngestAndExcise(in.ctx, in.files, nil, nil, in.t.span())
	return ioError("table", err)
}

// tableFiles names the files in progress.
type tableFiles struct {
	mu sync.Mutex
	n  int // under mu
}

func (f *tableFiles) dir(s *core) string { return s.cfg.FS.PathJoin(s.cfg.Dir, "ingest") }

func (f *tableFiles) next(s *core) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	return s.cfg.FS.PathJoin(f.dir(s), fmt.Sprintf("%d.sst", f.n))
}

// clean removes unfinished files of an earlier run.
func (f *tableFiles) clean(s *core) error {
	dir := f.dir(s)
	err := s.cfg.FS.RemoveAll(dir)
	return ioError("metadata store", errors.Join(err, s.cfg.FS.MkdirAll(dir, 0o700)))
}
