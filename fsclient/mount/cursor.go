package mount

import (
	"context"
	"sort"
	"sync"
	"syscall"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/bivouacfs/bivouac/metadata"
)

// pageSize is how many entries are asked for at once.
const pageSize = 1024

// cursor is the state of one open directory. Places in it are numbers: how
// many entries were listed before. The two pages that were read last are kept,
// so that a place in them stays what it was, whatever happens to the
// directory; of earlier pages only the names before them are.
type cursor struct {
	read readFunc

	turn  chan struct{} // room for the one who moves the cursor
	pages [2]page       // under turn: the last one that was read is the first
	marks []mark        // under turn: where each page that was read begins, in order
}

// readFunc reads at most limit entries behind the entry after; "" begins again.
// end says that there are no more.
type readFunc func(ctx context.Context, after string, limit int) (es []metadata.Entry, end bool, err error)

type page struct {
	mark
	entries []metadata.Entry
	end     bool // there are no more
}

// mark says that the entries from place first on follow the name after.
type mark struct {
	first int
	after string
}

func newCursor(read readFunc) *cursor {
	return &cursor{read: read, turn: make(chan struct{}, 1)}
}

// at returns some of the entries from the place i on; none means the end. With
// fresh the directory is read again.
func (c *cursor) at(ctx context.Context, i int, fresh bool) ([]metadata.Entry, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, syscall.EINTR
	}
	if fresh {
		c.pages = [2]page{}
	}
	for {
		for _, p := range c.pages {
			if i >= p.first && i < p.first+len(p.entries) {
				return p.entries[i-p.first:], nil
			}
		}
		last := &c.pages[0]
		if last.end && i >= last.first {
			return nil, nil
		}
		next := c.nearest(i)
		if n := last.first + len(last.entries); len(last.entries) > 0 && n <= i && n >= next.first {
			next = mark{n, last.entries[len(last.entries)-1].Name}
		}
		if err := c.load(ctx, next); err != nil {
			return nil, err
		}
	}
}

// nearest is the last mark that is not behind the place i.
func (c *cursor) nearest(i int) mark {
	k := sort.Search(len(c.marks), func(k int) bool { return c.marks[k].first > i })
	if k == 0 {
		return mark{}
	}
	return c.marks[k-1]
}

func (c *cursor) load(ctx context.Context, m mark) error {
	es, end, err := c.read(ctx, m.after, pageSize)
	if err != nil {
		return err
	}
	c.pages[1] = c.pages[0]
	c.pages[0] = page{mark: m, entries: es, end: end}
	k := sort.Search(len(c.marks), func(k int) bool { return c.marks[k].first >= m.first })
	if k == len(c.marks) {
		c.marks = append(c.marks, m)
	} else if c.marks[k].first == m.first {
		c.marks[k] = m
	}
	return nil
}

// maxCursors is how many directories a cover has cursors of: two pages each.
const maxCursors = 16

// cursors is those of directories that the kernel has opened by itself: one for
// all who list it. A directory whose cursor was dropped is read again from its
// beginning to where it is asked for.
type cursors struct {
	mu sync.Mutex
	of *simplelru.LRU[metadata.Ino, *cursor] // under mu; nil until the first
}

func (t *cursors) get(dir metadata.Ino, begin func() *cursor) *cursor {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of, _ = simplelru.NewLRU[metadata.Ino, *cursor](maxCursors, nil)
	}
	if c, ok := t.of.Get(dir); ok {
		return c
	}
	c := begin()
	t.of.Add(dir, c)
	return c
}
