package cluster

import (
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// ShardTable is in which epoch directories were split, as far as its owner has
// been told. A directory that is not in it is asked for at its home, which
// says so if it is sharded. The zero ShardTable is empty; it may be used at once
// from any number of goroutines.
type ShardTable struct {
	mu     sync.RWMutex
	epochs map[metadata.Ino]metadata.Epoch // under mu
}

// maxSharded is how many sharded directories are remembered. To have forgotten one
// costs a call.
const maxSharded = 4096

// Epoch is the epoch in which dir was split; 0 if its home is to be asked.
func (t *ShardTable) Epoch(dir metadata.Ino) metadata.Epoch {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.epochs[dir]
}

// Learn takes note of what a node has said.
func (t *ShardTable) Learn(e *metadata.Redirect) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Epoch == 0 {
		delete(t.epochs, e.Dir)
		return
	}
	if t.epochs == nil {
		t.epochs = make(map[metadata.Ino]metadata.Epoch)
	}
	if _, ok := t.epochs[e.Dir]; !ok && len(t.epochs) >= maxSharded {
		for dir := range t.epochs {
			delete(t.epochs, dir)
			break
		}
	}
	t.epochs[e.Dir] = e.Epoch
}
