package stagein

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// selection says which items are wanted. A nil one selects all.
type selection struct {
	source.Select
	limit int64 // files; 0 is all

	mu    sync.Mutex
	files int64           // guarded by mu; that were wanted so far
	list  *source.Missing // guarded by mu; what of it was not seen yet
}

// newSelection makes the selection of options, and reads the list. It is nil if all is wanted.
func newSelection(fs source.FS, o Options) (*selection, error) {
	if !o.selects() {
		return nil, nil
	}
	s := &selection{Select: o.sel(), limit: o.Limit}
	if o.List == "" {
		return s, nil
	}
	var err error
	if s.Paths, err = walk.ReadList(fs, string(o.List)); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	s.list = s.NewMissing()
	return s, nil
}

// wants reports whether an item is wanted, and counts it. Directories are not: they are made for what is in them.
func (s *selection) wants(it *source.Item) bool {
	if s == nil {
		return true
	}
	s.see(it.Path)
	if it.Path == "" || it.Is(source.TypeDir) || !s.Wants(it.Path) {
		return it.Path == ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit > 0 && s.files >= s.limit {
		return false
	}
	s.files++
	return true
}

// restored counts an item that an earlier try has staged.
func (s *selection) restored(rec *manifest.Record) {
	if s == nil || rec.Attr.Mode&source.TypeMask == source.TypeDir {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files++
}

// leaves reports whether a member that cannot be staged is not wanted, so that it does no harm.
func (s *selection) leaves(name string) bool {
	return s != nil && (s.full() || s.Ignores(name))
}

func (s *selection) see(path string) {
	if s.list == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list.See(path)
}

// unseen returns what is listed and was not found; nothing if the limit ended the search.
func (s *selection) unseen() []string {
	if s == nil || s.list == nil || s.full() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list.Left()
}

// listed refuses, or skips, what is listed and is in no archive.
func (s *Share) listed() error {
	o := &s.cfg.Plan.Options
	missing := s.sel.unseen()
	if o.OnError != OnErrorSkip {
		return missingOf(o.List, missing)
	}
	for _, m := range missing {
		if err := s.skip(m, notThere(o.List)); err != nil {
			return err
		}
	}
	return nil
}

// notThere is the error for something listed that is not in the source.
func notThere(list source.Name) error { return fmt.Errorf("%s lists it: %w", list, syscall.ENOENT) }

// full reports whether the limit is reached.
func (s *selection) full() bool {
	if s == nil || s.limit == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files >= s.limit
}

// wants reports whether an item of an archive is wanted, and gives it its path in the dataset.
func (s *Share) wants(it *source.Item) bool {
	if !s.sel.wants(it) {
		return false
	}
	under(string(s.cfg.Plan.Under), it)
	return true
}

// missingOf refuses a dataset that lacks something of the list.
func missingOf(list source.Name, missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	some := missing[:min(len(missing), 3)]
	return fmt.Errorf("%d of what %s lists is not there: %q: mend the list, or stage it in with on-error=skip: %w",
		len(missing), list, some, syscall.ENOENT)
}
