package scan

import (
	"testing"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// Internals for the external tests.
const (
	Beside     = beside
	LeastSpare = leastSpare
)

var IndexPaths = indexPaths

// ItemsOf returns the items of the only new index.
func ItemsOf(t *testing.T, all NewIndexes) []source.Item {
	t.Helper()
	items, err := inMemory(all[0].items)
	stageintest.NoError(t, err)
	return items
}

// EachOf iterates over items.
func EachOf(items []source.Item) func(func(*source.Item) error) error { return itemSlice(items).each }

// SetItems replaces the items of the only new index.
func SetItems(t *testing.T, all NewIndexes, items []source.Item) {
	t.Helper()
	l := newItemList(&manifest.Scratch{})
	for i := range items {
		stageintest.NoError(t, l.add(&items[i], 0))
	}
	all[0].items = l
}
