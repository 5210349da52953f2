package cluster

import (
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// WideTable is in which epoch directories were spread, as far as its owner has
// been told. A directory that is not in it is asked for at its home, which
// says so if it is wide. The zero WideTable is empty; it may be used at once
// from any number of goroutines.
type WideTable struct {
	mu     sync.RWMutex
	epochs map[metadata.Ino]metadata.Epoch // under mu
}

// maxWide is how many wide directories are remembered. To have forgotten one
// costs a call.
const maxWide = 4096

// Epoch is the epoch in which dir was spread; 0 if its home is to be asked.
func (t *WideTable) Epoch(dir metadata.Ino) metadata.Epoch {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.epochs[dir]
}

// Learn takes note of what a node has said.
func (t *WideTable) Learn(e *metadata.Elsewhere) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Epoch == 0 {
		delete(t.epochs, e.Dir)
		return
	}
	if t.epochs == nil {
		t.epochs = make(map[metadata.Ino]metadata.Epoch)
	}
	if _, ok := t.epochs[e.Dir]; !ok && len(t.epochs) >= maxWide {
		for dir := range t.epochs {
			delete(t.epochs, dir)
			break
		}
	}
	t.epochs[e.Dir] = e.Epoch
}
