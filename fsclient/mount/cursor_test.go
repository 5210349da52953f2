package mount

import (
	"context"
	"fmt"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// listing is a directory of n entries that counts how often it is read.
type listing struct{ n, reads int }

func (l *listing) read(_ context.Context, after string, limit int) ([]metadata.Entry, bool, error) {
	l.reads++
	first := 0
	if after != "" {
		if _, err := fmt.Sscanf(after, "%d", &first); err != nil {
			return nil, false, err
		}
		first++
	}
	var es []metadata.Entry
	for i := first; i < l.n && len(es) < limit; i++ {
		es = append(es, metadata.Entry{Name: fmt.Sprintf("%06d", i)})
	}
	return es, len(es) < limit, nil
}

func TestCursor(t *testing.T) {
	for _, n := range []int{0, 1, pageSize - 1, pageSize, pageSize + 1, 3*pageSize + 7} {
		l := &listing{n: n}
		c := newCursor(l.read)
		at := func(i int) string {
			t.Helper()
			es, err := c.at(context.Background(), i, i == 0)
			if err != nil {
				t.Fatal(err)
			}
			if len(es) == 0 {
				return "end"
			}
			return es[0].Name
		}
		want := func(i int) string {
			if i >= n {
				return "end"
			}
			return fmt.Sprintf("%06d", i)
		}
		for i := range n + 2 {
			if got := at(i); got != want(i) {
				t.Fatalf("position %d of %d = %s, want %s", i, n, got, want(i))
			}
		}
		if most := n/pageSize + 1; l.reads > most {
			t.Errorf("%d entries took %d reads, want at most %d", n, l.reads, most)
		}
		for _, i := range []int{n - 1, n / 2, 3, 0, n, n / 3, n + 5, 2} {
			if i = max(i, 0); at(i) != want(i) {
				t.Errorf("position %d of %d = %s, want %s", i, n, at(i), want(i))
			}
		}
	}
}
