package pebblestore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Split is a directory of this node that is being split. It stays in use until Freeze.
type Split struct {
	s   *shards
	dir metadata.Ino
	to  *shardedDir
	g   *reshardState
}

// BeginSplit starts to split dir. It returns nil if dir is too small, sharded, or being resharded.
func (s *shards) BeginSplit(dir metadata.Ino, to cluster.ShardMap) (*Split, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	defer s.locks.lock(dir).unlock()
	if d, g := s.sharded.get(dir); d != nil || g != nil || !s.here(dir) || len(to.Nodes) < 2 {
		return nil, nil
	}
	due, err := s.largeEnough(dir)
	if !due || err != nil {
		return nil, err
	}
	gen, err := s.newIno() // the number is never used again
	if err != nil {
		return nil, err
	}
	g := &reshardState{gen: gen.Counter(), dirty: make(map[string]struct{})}
	s.sharded.setResharding(dir, g)
	return &Split{s: s, dir: dir, g: g, to: &shardedDir{ShardMap: to, gen: g.gen, state: shardActive}}, nil
}

// largeEnough counts the entries of dir up to the limit.
func (s *shards) largeEnough(dir metadata.Ino) (bool, error) {
	n, err := s.inode(dir)
	if errors.Is(err, syscall.ENOENT) || err == nil && !n.isDir() {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	count := 0
	err = s.eachEntry(dir, "", func(string, entry) bool {
		count++
		return count < s.cfg.ShardAt
	})
	if err == nil && count < s.cfg.ShardAt {
		s.sharded.mu.Lock()
		s.sharded.roomFor(dir)
		s.sharded.counts[dir] = count
		s.sharded.mu.Unlock()
	}
	return count >= s.cfg.ShardAt, err
}

// eachEntry calls fn with the entries of dir after the name after, until fn returns false.
func (s *core) eachEntry(dir metadata.Ino, after string, fn func(name string, e entry) bool) error {
	lower := entryKey(dir, after)
	if after != "" {
		lower = append(lower, 0)
	}
	return scan(s.db, "metadata store", lower, entriesEnd(dir), func(k, v []byte) (bool, error) {
		e, err := parseEntry(v)
		if err != nil {
			return false, fmt.Errorf("record of entry %q in %v: %w", k[entryNameAt:], dir, err)
		}
		return fn(string(k[entryNameAt:]), e), nil
	})
}

// Shard returns the description of a shard for its node.
func (m *Split) Shard() (metadata.NewShard, error) {
	if err := m.s.begin(); err != nil {
		return metadata.NewShard{}, err
	}
	defer m.s.end()
	n, err := m.s.inode(m.dir)
	return metadata.NewShard{
		Shard: metadata.Shard{Dir: m.dir, Gen: m.to.gen},
		Epoch: m.to.Epoch, Seed: m.to.Seed, Nodes: m.to.Nodes, Attr: n.Attr,
	}, err
}

// Entries reads at most limit entries after the name after. It returns those of other nodes, by node, and the last name
// read; "" means the end.
func (m *Split) Entries(after string, limit int) (map[metadata.NodeID][]metadata.Entry, string, error) {
	if err := m.s.begin(); err != nil {
		return nil, "", err
	}
	defer m.s.end()
	out := make(map[metadata.NodeID][]metadata.Entry)
	last, n := "", 0
	err := m.s.eachEntry(m.dir, after, func(name string, e entry) bool {
		if n == limit {
			last = after
			return false
		}
		n++
		after = name
		m.add(out, name, e)
		return true
	})
	return out, last, err
}

func (m *Split) add(out map[metadata.NodeID][]metadata.Entry, name string, e entry) {
	if id := m.to.Home(m.dir, name); id != m.s.cfg.Self {
		out[id] = append(out[id], metadata.Entry{Name: name, Ino: e.ino, Mode: e.mode})
	}
}

// Changed is Entries for at most limit names that have changed since they were last returned; a removed entry has no
// Ino.
func (m *Split) Changed(limit int) (out map[metadata.NodeID][]metadata.Entry, more bool, err error) {
	if err := m.s.begin(); err != nil {
		return nil, false, err
	}
	defer m.s.end()
	defer m.s.locks.lock(m.dir).unlock() // no operation is between a change and its commit
	out = make(map[metadata.NodeID][]metadata.Entry)
	for name := range m.g.dirty {
		if limit == 0 {
			return out, true, nil
		}
		limit--
		e, err := m.s.entry(m.dir, name)
		if err != nil {
			return nil, false, err
		}
		m.add(out, name, e)
		delete(m.g.dirty, name)
	}
	return out, false, nil
}

// Freeze blocks changes of the entries until Commit or Cancel: they return Resharding.
func (m *Split) Freeze() {
	defer m.s.locks.lock(m.dir).unlock()
	m.g.frozen = true
}

// AwaitTransactions waits, after Freeze, for the transactions on entries of the directory.
func (m *Split) AwaitTransactions(ctx context.Context) error {
	return m.s.awaitTransactions(ctx, m.dir)
}

// Commit makes the directory sharded, in one batch. The shards must have all entries that Entries and, after Freeze,
// Changed have returned. After ErrUnknownOutcome the directory stays frozen: Commit must be repeated until it succeeds,
// and until then neither Cancel nor an order to the shards may follow.
func (m *Split) Commit() (err error) {
	if err := m.s.begin(); err != nil {
		return err
	}
	defer m.s.end()
	defer m.s.locks.lock(m.dir).unlock()
	defer func() { m.s.sharded.endResharding(m.dir, m.g, err) }()
	if !m.g.frozen || len(m.g.dirty) > 0 || len(m.s.txLocks.in(m.dir)) > 0 {
		return fmt.Errorf("directory %v was changed while it was split: %w", m.dir, syscall.EBUSY)
	}
	t := m.s.step()
	defer t.close()
	if _, err := t.dir(m.dir); err != nil {
		return err
	}
	subdirs := make(map[metadata.NodeID]uint32)
	err = m.s.eachEntry(m.dir, "", func(name string, e entry) bool {
		id := m.to.Home(m.dir, name)
		if id == m.s.cfg.Self {
			return true
		}
		if isDir(e.mode) {
			subdirs[id]++
		}
		t.note(t.b.Delete(entryKey(m.dir, name), nil))
		return true
	})
	if err != nil {
		return err
	}
	for id, n := range subdirs {
		t.note(t.b.Set(shardReportKey(m.dir, id), binary.AppendUvarint(nil, uint64(n)), nil))
	}
	t.putShardMap(m.dir, m.to)
	// From here on lookups of missing names are redirected. Reports of shards are answered once the state is cleared.
	m.s.sharded.set(m.dir, m.to)
	if err := t.commit(); err != nil {
		m.s.sharded.set(m.dir, nil)
		return err
	}
	return nil
}

// Cancel leaves the directory unsharded.
func (m *Split) Cancel() {
	defer m.s.locks.lock(m.dir).unlock()
	m.s.sharded.setResharding(m.dir, nil)
}

// Merge is a sharded directory of this node that is being merged. Its entries do not change during the merge.
type Merge struct {
	s   *shards
	dir metadata.Ino
	d   *shardedDir
	g   *reshardState
}

// BeginMerge starts to merge dir. It returns nil if dir is not sharded, ENOTEMPTY if there are entries here, and
// Resharding if dir is being resharded.
func (s *shards) BeginMerge(dir metadata.Ino) (*Merge, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	defer s.locks.lock(dir).unlock()
	d, g := s.sharded.get(dir)
	switch {
	case !s.here(dir) || d == nil && g == nil:
		return nil, nil
	case g != nil || len(s.txLocks.in(dir)) > 0:
		return nil, &metadata.Resharding{Dir: dir}
	}
	empty, err := s.empty(dir)
	if err != nil {
		return nil, err
	}
	if !empty {
		return nil, fmt.Errorf("directory %v: %w", dir, syscall.ENOTEMPTY)
	}
	freeze, err := s.newIno()
	if err != nil {
		return nil, err
	}
	g = &reshardState{gen: d.gen, frozen: true, freeze: freeze.Counter()}
	s.sharded.setResharding(dir, g)
	return &Merge{s: s, dir: dir, d: d, g: g}, nil
}

// Nodes returns the nodes of the shards.
func (f *Merge) Nodes() []metadata.NodeID { return f.d.Nodes }

// Order returns an order to the shards in this merge.
func (f *Merge) Order(o metadata.ShardOrder) metadata.ShardChange {
	return metadata.ShardChange{
		Shard: metadata.Shard{Dir: f.dir, Gen: f.d.gen}, Order: o, Freeze: f.g.freeze,
	}
}

// Commit makes the directory unsharded. Its shards must be frozen. See Split.Commit for an unknown outcome.
func (f *Merge) Commit() (err error) {
	if err := f.s.begin(); err != nil {
		return err
	}
	defer f.s.end()
	defer f.s.locks.lock(f.dir).unlock()
	defer func() { f.s.sharded.endResharding(f.dir, f.g, err) }()
	t := f.s.step()
	defer t.close()
	n, err := t.dir(f.dir)
	if err != nil {
		return err
	}
	n.Nlink = 2
	t.put(n)
	t.note(t.b.Delete(shardKey(f.dir), nil))
	t.note(t.b.DeleteRange(shardReportKey(f.dir, 0), shardReportEnd(f.dir), nil))
	if err := t.commit(); err != nil {
		return err
	}
	f.s.sharded.set(f.dir, nil)
	return nil
}

// Cancel leaves the directory sharded.
func (f *Merge) Cancel() {
	defer f.s.locks.lock(f.dir).unlock()
	f.s.sharded.setResharding(f.dir, nil)
}
