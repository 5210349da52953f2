package mount

import (
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// creations is the set of files whose creating open has not returned yet. After CREATE the kernel asks for the
// attributes to check permissions, because it may not cache those in CREATE's answer. It asks within the same open, in
// the same thread, before any other request about the file. CREATE's answer is still right, unless another process of
// this node has opened or changed the file: the kernel must not see an older size again. Later requests go to the
// file's home.
type creations struct {
	mu    sync.Mutex
	files map[metadata.Ino]creation // under mu
}

type creation struct {
	pid  uint32
	attr metadata.Attr
}

// add records a creation by the thread pid; 0 means a thread of another pid namespace.
func (n *creations) add(pid uint32, a metadata.Attr) {
	if pid == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.files == nil {
		n.files = make(map[metadata.Ino]creation)
	}
	n.files[a.Ino] = creation{pid, a}
}

// take returns CREATE's answer, once, to the thread that created the file.
func (n *creations) take(pid uint32, ino metadata.Ino) (metadata.Attr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, ok := n.files[ino]
	delete(n.files, ino)
	return b.attr, ok && b.pid == pid
}

// drop forgets a file.
func (n *creations) drop(ino metadata.Ino) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.files, ino)
}
