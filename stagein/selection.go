package stagein

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// Selection says which items are wanted. A nil one selects all.
type Selection struct {
	source.Select
	limit int64 // files; 0 is all

	mu    sync.Mutex
	files int64           // guarded by mu; that were wanted so far
	list  *source.Missing // guarded by mu; what of it was not seen yet
}

// NewSelection makes the selection of options, and reads the list. It is nil if all is wanted.
func NewSelection(fs source.FS, o Options) (*Selection, error) {
	if !o.Selects() {
		return nil, nil
	}
	s := &Selection{Select: o.sel(), limit: o.Limit}
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

// Wanted reports whether an item is wanted, and counts it. Directories are not: they are made for their files.
func (s *Selection) Wanted(it *source.Item) bool {
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

// Restored counts an item that an earlier try has staged.
func (s *Selection) Restored(rec *manifest.Record) {
	if s == nil || rec.Attr.Mode&source.TypeMask == source.TypeDir {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files++
}

// Leaves reports whether a member that cannot be staged is not wanted, so that it does no harm.
func (s *Selection) Leaves(name string) bool {
	return s != nil && (s.Full() || s.Ignores(name))
}

func (s *Selection) see(path string) {
	if s.list == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list.See(path)
}

// Unseen returns the names of the list that were not found; none if the limit ended the search.
func (s *Selection) Unseen() []string {
	if s == nil || s.list == nil || s.Full() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list.Left()
}

// NotThere is the error for a name of the list that is not in the source.
func NotThere(list source.Name) error { return fmt.Errorf("%s lists it: %w", list, syscall.ENOENT) }

// Full reports whether the limit is reached.
func (s *Selection) Full() bool {
	if s == nil || s.limit == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files >= s.limit
}

// Unlisted refuses a dataset that lacks something of the list.
func Unlisted(list source.Name, missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	some := missing[:min(len(missing), 3)]
	return fmt.Errorf("%d of the paths in %s not found in the source: %q: correct the list, or stage in with on-error=skip: %w",
		len(missing), list, some, syscall.ENOENT)
}

// Next returns those of the items of an archive that are selected, given the archives before.
func (s *Selection) Next(items []source.Item) []source.Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.limit - s.files
	if s.limit > 0 && left == 0 {
		return nil
	}
	items = s.Filter(items, left)
	for i := range items {
		if s.limit > 0 && !items[i].Is(source.TypeDir) {
			s.files++
		}
	}
	return items
}
