package stagein

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// Selection decides which items are wanted. A nil Selection selects all.
type Selection struct {
	source.Select
	limit int64 // files; 0: no limit

	mu    sync.Mutex
	files int64           // guarded by mu; wanted so far
	list  *source.Missing // guarded by mu; listed names not yet seen
}

// NewSelection returns the selection of options, and reads the list. It returns nil if all items are wanted.
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

// Wanted reports whether an item is wanted, and counts it. Directories are not wanted: they are made for their files.
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

// Restored counts an item that an earlier try staged.
func (s *Selection) Restored(rec *manifest.Record) {
	if s == nil || rec.Attr.Mode&source.TypeMask == source.TypeDir {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files++
}

// Leaves reports whether a member that cannot be staged is not wanted, so that it may be ignored.
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

// Unseen returns the listed names that were not found, or none if the limit ended the search.
func (s *Selection) Unseen() []string {
	if s == nil || s.list == nil || s.Full() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list.Left()
}

// NotThere returns the error for a listed name that is not in the source.
func NotThere(list source.Name) error { return fmt.Errorf("%s lists it: %w", list, syscall.ENOENT) }

// Full reports whether the limit has been reached.
func (s *Selection) Full() bool {
	if s == nil || s.limit == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files >= s.limit
}

// Unlisted refuses a dataset that lacks listed names.
func Unlisted(list source.Name, missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	some := missing[:min(len(missing), 3)]
	return fmt.Errorf("%d of the paths in %s not found in the source: %q: correct the list, or stage in with on-error=skip: %w",
		len(missing), list, some, syscall.ENOENT)
}

// Next returns the selected items of an archive, after those of the archives before.
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
