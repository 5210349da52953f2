package pebblestore

import (
	"slices"
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// stripes is a power of two, much larger than the number of concurrent operations.
const stripes = 512

// maxLocked is the maximum number of inodes that one operation locks: for each edit of a transaction the directory, its
// entry's inode and a replaced inode.
const maxLocked = 3 * metadata.MaxEdits

// locks is a striped mutex for inodes.
type locks [stripes]sync.Mutex

// held lists the stripes of one operation.
type held struct {
	l   *locks
	idx [maxLocked]int
	n   int
}

// lock takes the stripes of inos in order, each once; 0 is no inode.
func (l *locks) lock(inos ...metadata.Ino) held {
	h := held{l: l}
	for _, ino := range inos {
		i := int(uint64(ino) * 0x9e3779b97f4a7c15 >> 55 & (stripes - 1))
		if ino != 0 && !slices.Contains(h.idx[:h.n], i) {
			h.idx[h.n] = i
			h.n++
		}
	}
	slices.Sort(h.idx[:h.n])
	for _, i := range h.idx[:h.n] {
		l[i].Lock()
	}
	return h
}

func (h held) unlock() {
	for _, i := range h.idx[:h.n] {
		h.l[i].Unlock()
	}
}
