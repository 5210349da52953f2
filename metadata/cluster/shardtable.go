package cluster

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/bivouacfs/bivouac/metadata"
)

// ShardTable remembers in which epoch directories were split. For any other directory the home is asked, which
// redirects if the directory is sharded. The zero ShardTable is empty; it is safe for concurrent use.
type ShardTable struct {
	mu     sync.RWMutex
	epochs *simplelru.LRU[metadata.Ino, metadata.Epoch] // guarded by mu; nil while empty
}

// maxSharded limits the sharded directories that are remembered. An evicted one costs a call.
const maxSharded = 4096

// Epoch returns the epoch in which dir was split; 0 if its home must be asked.
func (t *ShardTable) Epoch(dir metadata.Ino) metadata.Epoch {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.epochs == nil {
		return 0
	}
	e, _ := t.epochs.Peek(dir) // Get would need the write lock
	return e
}

// Learn records a redirect from a node.
func (t *ShardTable) Learn(e *metadata.Redirect) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epochs == nil {
		t.epochs, _ = simplelru.NewLRU[metadata.Ino, metadata.Epoch](maxSharded, nil)
	}
	if e.Epoch == 0 {
		t.epochs.Remove(e.Dir)
	} else {
		t.epochs.Add(e.Dir, e.Epoch)
	}
}
