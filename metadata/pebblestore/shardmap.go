package pebblestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/varint"
)

// shardedDir is a sharded directory with a shard on this node. Values in the table are immutable.
type shardedDir struct {
	cluster.ShardMap
	gen    uint64
	state  shardState
	freeze uint64 // number of the freeze, while frozen
}

// shardState is the state of this node's shard. At the directory's home it is always active.
type shardState byte

const (
	shardFilling shardState = 1 // the home still has the entries
	shardActive  shardState = 2
	shardFrozen  shardState = 3 // empty, while its directory is being merged
)

// reshardState is a split or merge in progress at the home. It changes with the directory locked.
type reshardState struct {
	gen    uint64
	frozen bool                // changes are refused
	doubt  bool                // an earlier commit may have taken effect, so only a commit can end the resharding
	freeze uint64              // number of the freeze of a merge
	dirty  map[string]struct{} // names changed since they were last sent; nil in a merge
}

// shardedDirs holds all sharded directories in memory, because every operation looks them up.
type shardedDirs struct {
	mu         sync.RWMutex
	dirs       map[metadata.Ino]*shardedDir   // under mu; as in the records
	resharding map[metadata.Ino]*reshardState // under mu
	counts     map[metadata.Ino]int           // guarded by mu: entries created minus removed, since the last count

	full    dirSet // directories that may need a split
	changed dirSet // directories whose shards here must report to their homes
}

// dirSet is a set of directories with a signal that it is not empty.
type dirSet struct {
	mu     sync.Mutex
	dirs   map[metadata.Ino]struct{} // under mu
	signal chan struct{}             // capacity 1
}

func (n *dirSet) init() {
	n.dirs = make(map[metadata.Ino]struct{})
	n.signal = make(chan struct{}, 1)
}

func (n *dirSet) add(dir metadata.Ino) {
	n.mu.Lock()
	n.dirs[dir] = struct{}{}
	n.mu.Unlock()
	select {
	case n.signal <- struct{}{}:
	default:
	}
}

func (n *dirSet) take() []metadata.Ino {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := slices.Collect(maps.Keys(n.dirs))
	clear(n.dirs)
	return all
}

func (w *shardedDirs) init() {
	w.dirs = make(map[metadata.Ino]*shardedDir)
	w.resharding = make(map[metadata.Ino]*reshardState)
	w.counts = make(map[metadata.Ino]int)
	w.full.init()
	w.changed.init()
}

func (w *shardedDirs) get(dir metadata.Ino) (*shardedDir, *reshardState) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.dirs[dir], w.resharding[dir]
}

// set replaces the state of dir; nil removes it.
func (w *shardedDirs) set(dir metadata.Ino, d *shardedDir) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d == nil {
		delete(w.dirs, dir)
		return
	}
	w.dirs[dir] = d
	delete(w.counts, dir)
}

func (w *shardedDirs) setResharding(dir metadata.Ino, g *reshardState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if g == nil {
		delete(w.resharding, dir)
		return
	}
	w.resharding[dir] = g
}

// endResharding ends g after its commit has returned err, unless that commit or an earlier one may have taken effect.
func (w *shardedDirs) endResharding(dir metadata.Ino, g *reshardState, err error) {
	g.doubt = g.doubt || errors.Is(err, metadata.ErrUnknownOutcome)
	if err == nil || !g.doubt {
		w.setResharding(dir, nil)
	}
}

// checkWritable returns nil if the entry name of dir may be changed here now. The caller holds the lock of dir.
func (s *core) checkWritable(dir metadata.Ino, name string) error {
	d, g := s.sharded.get(dir)
	if g != nil && g.frozen {
		return &metadata.Resharding{Dir: dir}
	}
	return s.checkEntryHome(d, dir, name)
}

// checkReadable returns nil if the entry name of dir can be read here. At the directory's home it is called only for
// missing names: an existing entry has not moved.
func (s *core) checkReadable(dir metadata.Ino, name string) error {
	d, _ := s.sharded.get(dir)
	return s.checkEntryHome(d, dir, name)
}

func (s *core) checkEntryHome(d *shardedDir, dir metadata.Ino, name string) error {
	switch {
	case d == nil && (dir.Sealed() || s.here(dir)):
		return nil
	case d == nil:
		return &metadata.Redirect{Dir: dir}
	case d.state != shardActive:
		s.sharded.changed.add(dir)
		return &metadata.Resharding{Dir: dir}
	case d.Home(dir, name) != s.cfg.Self:
		return &metadata.Redirect{Dir: dir, Epoch: d.Epoch}
	}
	return nil
}

// Resharding reports whether dir is being split or merged.
func (s *core) Resharding(dir metadata.Ino) bool {
	_, g := s.sharded.get(dir)
	return g != nil
}

// Epoch returns the epoch of the split of dir, or 0 if dir is not sharded or has no shard here.
func (s *core) Epoch(dir metadata.Ino) metadata.Epoch {
	if d, _ := s.sharded.get(dir); d != nil {
		return d.Epoch
	}
	return 0
}

// count counts created or removed entries of dir, which the caller has locked.
func (s *core) count(dir metadata.Ino, name string, delta int) {
	w := &s.sharded
	w.mu.Lock()
	if g := w.resharding[dir]; g != nil && g.dirty != nil {
		g.dirty[name] = struct{}{}
	}
	if w.dirs[dir] != nil || s.cfg.ShardAt <= 0 {
		w.mu.Unlock()
		return
	}
	n := w.counts[dir] + delta
	if n <= 0 {
		delete(w.counts, dir)
	} else {
		w.roomFor(dir)
		w.counts[dir] = n
	}
	w.mu.Unlock()
	if n >= s.cfg.ShardAt && n%s.countStep() == 0 {
		w.full.add(dir)
	}
}

// countStep is the number of further entries before the next attempt to split a directory.
func (s *core) countStep() int { return max(s.cfg.ShardAt/4, 1) }

// maxCounts limits the directories that are counted at once. The count of an evicted one restarts at 0, so it is split
// later.
const maxCounts = 4096

// roomFor makes room in counts: it samples some directories and evicts the one with the fewest entries. The caller
// holds w.mu.
func (w *shardedDirs) roomFor(dir metadata.Ino) {
	if _, ok := w.counts[dir]; ok || len(w.counts) < maxCounts {
		return
	}
	var least metadata.Ino
	seen := 0
	for other, n := range w.counts {
		if seen == 0 || n < w.counts[least] {
			least = other
		}
		if seen++; seen == 16 {
			break
		}
	}
	delete(w.counts, least)
}

// Full is signalled when FullDirs is not empty.
func (s *core) Full() <-chan struct{} { return s.sharded.full.signal }

// FullDirs returns and clears the directories that may be large enough to be split.
func (s *core) FullDirs() []metadata.Ino { return s.sharded.full.take() }

// Changed is signalled when ChangedShards is not empty.
func (s *core) Changed() <-chan struct{} { return s.sharded.changed.signal }

// ChangedShards returns and clears the directories whose shards here should report to their homes.
func (s *core) ChangedShards() []metadata.Ino { return s.sharded.changed.take() }

// MarkChanged makes ChangedShards return dir again.
func (s *core) MarkChanged(dir metadata.Ino) { s.sharded.changed.add(dir) }

const shardVersion = 1

// append appends the record of a sharded directory.
func (d *shardedDir) append(b []byte) []byte {
	b = append(b, shardVersion, byte(d.state))
	b = binary.AppendUvarint(b, d.gen)
	b = binary.AppendUvarint(b, d.freeze)
	b = binary.AppendUvarint(b, uint64(d.Epoch))
	b = binary.BigEndian.AppendUint64(b, d.Seed)
	b = binary.AppendUvarint(b, uint64(len(d.Nodes)))
	for _, id := range d.Nodes {
		b = binary.AppendUvarint(b, uint64(id))
	}
	return b
}

func parseShardedDir(b []byte) (*shardedDir, error) {
	d := varint.Decoder{B: b}
	if d.Byte() != shardVersion {
		return nil, syscall.EIO
	}
	w := &shardedDir{state: shardState(d.Byte()), gen: d.Uvarint(), freeze: d.Uvarint()}
	w.Epoch, w.Seed = metadata.Epoch(d.Uvarint()), d.Fixed64()
	n := d.Bounded(metadata.MaxNodes)
	if n > uint64(len(d.B)) {
		return nil, syscall.EIO
	}
	for range n {
		w.Nodes = append(w.Nodes, metadata.NodeID(d.Uint16()))
	}
	if !d.Whole() || len(w.Nodes) == 0 || w.state < shardFilling || w.state > shardFrozen {
		return nil, syscall.EIO
	}
	return w, nil
}

// loadSharded reads the table at a start. Afterwards every shard reports.
func (s *shards) loadSharded() error {
	return scanInos(s.db, "sharded directories", prefixShard, func(dir metadata.Ino, v []byte) error {
		d, err := parseShardedDir(v)
		if err != nil {
			return fmt.Errorf("record of sharded directory %v: %w", dir, err)
		}
		s.sharded.set(dir, d)
		if !s.here(dir) {
			s.MarkChanged(dir)
		}
		return nil
	})
}

// ShardedError is the error for removing a sharded directory, which must be merged first.
type ShardedError struct{ Dir metadata.Ino }

// Error implements error.
func (e *ShardedError) Error() string {
	return fmt.Sprintf("directory %v is sharded: %v", e.Dir, syscall.EBUSY)
}

// Unwrap returns the errno.
func (e *ShardedError) Unwrap() error { return syscall.EBUSY }
