// Package pagecache remembers which version of a live file the pages are of that the
// kernel has cached, so that an open keeps the pages of a file that has not changed. Its one
// idea is that the home's st_ctime is a version: it grows with every change of an inode
// (package pebblestore).
//
//	open     home: version v ── Fresh(v) ── the kernel keeps its pages
//	                        └── else ────── the kernel drops them while it opens the file
//	                                        first request for the open file: Dropped(v)
//
// Every page is then of version v, or newer: the kernel has asked for it after the home had
// answered v, and writers tell the home of their writes after the owners of the data have
// them. Dropped waits for that first request because the reply to the open may still be on
// its way to the kernel: another open must not keep what this one is about to drop.
//
// While a file is open, the kernel validates its pages before each read, by an st_mtime: Shown.
//
// It does no I/O, and must not know the kernel's protocol.
package pagecache

import (
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// maxFiles is how many files are remembered, at least.
const maxFiles = 1 << 16

// Version is a version of a file. A writer whose node is lost, or whose daemon is killed together with the home, has not told
// the home of its last writes: every change of the map is a new version of all files, and every restart of a home of its own.
type Version struct {
	Ctime metadata.Time
	Epoch metadata.Epoch
	Home  metadata.Run // as the home has answered the open
}

// Table is the files whose pages the kernel may have. Its zero value is empty.
type Table struct {
	mu    sync.Mutex
	files [2]map[metadata.Ino]Version // under mu: newer ones first
}

// Fresh reports whether all pages of ino are of version v or newer.
func (t *Table) Fresh(ino metadata.Ino, v Version) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, m := range t.files {
		if have, ok := m[ino]; ok {
			if i > 0 && have == v {
				t.put(ino, v)
			}
			return have == v
		}
	}
	return false
}

// Dropped notes that the kernel has dropped all pages of ino that it had when the home answered v.
func (t *Table) Dropped(ino metadata.Ino, v Version) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(ino, v)
}

// put makes v the version of ino; t.mu is held.
func (t *Table) put(ino metadata.Ino, v Version) {
	if t.files[0] == nil || len(t.files[0]) >= maxFiles {
		t.files = [2]map[metadata.Ino]Version{make(map[metadata.Ino]Version), t.files[0]}
	}
	t.files[0][ino] = v
}
