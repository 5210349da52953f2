package pagecache

import (
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// maxFiles is the least number of files that are remembered.
const maxFiles = 1 << 16

// Version is a version of a file. A writer whose node is lost, or whose daemon is killed together with the home, has
// not reported its last writes: so a change of the map makes new versions of all files, a restart of a home of its own.
type Version struct {
	Ctime metadata.Time
	Epoch metadata.Epoch
	Home  metadata.Run // from the home's answer to the open
}

// Table records the files whose pages the kernel may have. Its zero value is empty.
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

// Dropped records that the kernel has dropped all pages of ino that it had when the home answered v.
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
