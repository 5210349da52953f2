package mount

import (
	"context"
	"sort"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
)

// pageSize is how many entries are read at once.
const pageSize = 1024

// cursor is the state of one open directory. A position is the number of entries listed before it. The two pages read
// last are kept, so that positions in them stay valid whatever happens to the directory; of earlier pages only the name
// before the first entry is kept.
type cursor struct {
	read readFunc

	turn  wait.Mutex // held by the call that moves the cursor
	pages [2]page    // under turn: the last read first
	marks []mark     // under turn: where each page begins, in order
}

// readFunc reads at most limit entries that follow the entry after; "" starts from the beginning. end reports that
// there are no more.
type readFunc func(ctx context.Context, after string, limit int) (es []metadata.Entry, end bool, err error)

type page struct {
	mark
	entries []metadata.Entry
	end     bool // there are no more
}

// mark records that the entries from position first on follow the name after.
type mark struct {
	first int
	after string
}

func newCursor(read readFunc) *cursor {
	return &cursor{read: read, turn: wait.NewMutex()}
}

// at returns entries from position i on; none at the end. With fresh the directory is read again.
func (c *cursor) at(ctx context.Context, i int, fresh bool) ([]metadata.Entry, error) {
	if err := c.turn.Lock(ctx); err != nil {
		return nil, err
	}
	defer c.turn.Unlock()
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

// nearest returns the last mark at or before position i.
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

// maxCursors is how many cursors a cover keeps, with two pages each.
const maxCursors = 16

// cursors holds the cursors of directories that the kernel has opened without asking: one cursor for all processes that
// list the directory. A directory whose cursor was evicted is read again from its beginning.
type cursors struct {
	mu sync.Mutex
	of *simplelru.LRU[metadata.Ino, *cursor] // under mu; nil until the first one
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
