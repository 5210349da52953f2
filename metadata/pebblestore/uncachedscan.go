package pebblestore

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// cachedPairs is how many pairs of a scan go through the block cache. The rest of a long scan
// bypasses it, so as not to evict blocks that are read again.
const cachedPairs = 16 << 10

// scan calls fn with the pairs of a table in the range of o.
func (s *core) scan(o *pebble.IterOptions, fn func(k, v []byte) bool) error {
	it, err := s.db.NewIter(o)
	if err != nil {
		return err
	}
	more := it.First()
	for n := 0; more && n < cachedPairs; n++ {
		more = fn(it.Key()[3:], it.Value()) && it.Next()
	}
	if more {
		more = s.scanFiles(it, o.UpperBound, fn)
	}
	for more && fn(it.Key()[3:], it.Value()) {
		more = it.Next()
	}
	return it.Close()
}

// scanFiles calls fn with the pairs from it to upper, read from their files without the cache. True
// means that fn wants more, and that it is positioned at the next pair: the files cannot be read,
// or are gone since they were listed.
func (s *core) scanFiles(it *pebble.Iterator, upper []byte, fn func(k, v []byte) bool) bool {
	next := bytes.Clone(it.Key())
	for _, path := range s.filesOf(it, upper) {
		more, err := s.scanFile(path, &pebble.IterOptions{LowerBound: bytes.Clone(next), UpperBound: upper}, func(k, v []byte) bool {
			next = append(append(next[:3], k...), 0)
			return fn(k, v)
		})
		if !more {
			return false
		}
		if err != nil {
			s.cfg.Log.WithError(err).Debugf("%s is read through the cache", path)
			break
		}
	}
	return it.SeekGE(next)
}

// filesOf lists the files, in order, that have all pairs from it to upper; none if that is
// uncertain.
func (s *core) filesOf(it *pebble.Iterator, upper []byte) []string {
	from := bytes.Clone(it.Key())
	levels, err := s.db.SSTables(pebble.WithKeyRangeFilter(from, upper))
	if err != nil {
		return nil
	}
	var files []pebble.SSTableInfo
	for _, level := range levels {
		if len(files) > 0 && len(level) > 0 {
			return nil // pairs of one level may hide those of the other
		}
		files = append(files, level...)
	}
	var paths []string
	for i, f := range files {
		if f.Virtual || f.BackingType != pebble.BackingTypeLocal || // virtual: only a part of the file is valid
			i > 0 && bytes.Compare(files[i-1].Largest.UserKey, f.Smallest.UserKey) >= 0 {
			return nil
		}
		paths = append(paths, s.cfg.FS.PathJoin(s.cfg.Dir, f.BackingSSTNum.String()+".sst"))
	}
	return paths
}

// scanFile calls fn with the pairs of a file in the range of o, and reports whether fn wants more,
// also with an error.
func (s *core) scanFile(path string, o *pebble.IterOptions, fn func(k, v []byte) bool) (bool, error) {
	f, err := s.cfg.FS.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return true, err
	}
	po := s.options()
	po.EnsureDefaults()
	it, err := pebble.NewExternalIter(po, o, [][]sstable.ReadableFile{{f}}) // which closes f
	if err != nil {
		return true, err
	}
	more := true
	for ok := it.First(); ok && more; ok = more && it.Next() {
		more = fn(it.Key()[3:], it.Value())
	}
	return more, it.Close()
}
