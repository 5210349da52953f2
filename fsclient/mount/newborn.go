package mount

import (
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// newborns is the files that were made by an open that has not returned yet.
// After CREATE the kernel checks the permissions of what was made, and asks for
// its attributes for that, because it may not keep those of CREATE's answer.
// That question is part of the same open, by the same thread, and comes before
// any other of it about the file; CREATE's answer is good for it, as long as nobody
// else on this node has opened or changed the file: that one's kernel must not hear
// of an older size again. The next question goes to the file's home again.
type newborns struct {
	mu    sync.Mutex
	files map[metadata.Ino]newborn // under mu
}

type newborn struct {
	pid  uint32
	attr metadata.Attr
}

// add notes what the thread pid has made; 0 is one that has no number here.
func (n *newborns) add(pid uint32, a metadata.Attr) {
	if pid == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.files == nil {
		n.files = make(map[metadata.Ino]newborn)
	}
	n.files[a.Ino] = newborn{pid, a}
}

// take returns what CREATE has answered, once, and to whom it has answered.
func (n *newborns) take(pid uint32, ino metadata.Ino) (metadata.Attr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, ok := n.files[ino]
	delete(n.files, ino)
	return b.attr, ok && b.pid == pid
}

// drop forgets a file.
func (n *newborns) drop(ino metadata.Ino) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.files, ino)
}
