package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// CreateShard implements metadata.Shards.
func (s *shards) CreateShard(_ context.Context, n metadata.NewShard) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	if s.here(n.Dir) || n.Dir.Sealed() || !isDir(n.Attr.Mode) || !slices.Contains(n.Nodes, s.cfg.Self) || !slices.IsSorted(n.Nodes) {
		return fmt.Errorf("shard of directory %v: %w", n.Dir, syscall.EINVAL)
	}
	defer s.locks.lock(n.Dir).unlock()
	old, _ := s.sharded.get(n.Dir)
	switch {
	case old != nil && old.gen > n.Gen:
		return fmt.Errorf("shard %d of directory %v: %w", n.Gen, n.Dir, syscall.ESTALE)
	case old != nil && old.state == shardActive:
		return fmt.Errorf("shard of directory %v is in use: %w", n.Dir, syscall.EBUSY)
	}
	t := s.step()
	defer t.close()
	d := &shardedDir{
		ShardMap: cluster.ShardMap{Epoch: n.Epoch, Seed: n.Seed, Nodes: slices.Clone(n.Nodes)},
		gen:      n.Gen, state: shardFilling,
	}
	t.note(t.b.DeleteRange(entryKey(n.Dir, ""), entriesEnd(n.Dir), nil))
	t.putShardMap(n.Dir, d)
	c := inode{Attr: n.Attr}
	c.Ino, c.Nlink, c.Atime = n.Dir, 2, n.Attr.Ctime
	t.put(&c)
	if err := t.commit(); err != nil {
		return err
	}
	s.sharded.set(n.Dir, d)
	return nil
}

// shard returns the shard of that split, or ESTALE if it is not the current one. The caller holds the lock of its
// directory.
func (s *shards) shard(sec metadata.Shard) (*shardedDir, error) {
	d, _ := s.sharded.get(sec.Dir)
	if d == nil || d.gen != sec.Gen || s.here(sec.Dir) {
		return nil, fmt.Errorf("shard %d of directory %v: %w", sec.Gen, sec.Dir, syscall.ESTALE)
	}
	return d, nil
}

// FillShard implements metadata.Shards.
func (s *shards) FillShard(_ context.Context, sec metadata.Shard, es []metadata.Entry) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	defer s.locks.lock(sec.Dir).unlock()
	d, err := s.shard(sec)
	if err != nil {
		return err
	}
	if d.state != shardFilling {
		return fmt.Errorf("shard of directory %v is filled: %w", sec.Dir, syscall.EBUSY)
	}
	t := s.step()
	defer t.close()
	n, err := t.dir(sec.Dir)
	if err != nil {
		return err
	}
	for _, e := range es {
		if err := t.fill(n, e); err != nil {
			return err
		}
	}
	t.put(n)
	return t.commit()
}

// fill enters or removes e, and counts subdirectories.
func (t *step) fill(n *inode, e metadata.Entry) error {
	if err := checkName(e.Name); err != nil {
		return err
	}
	old, err := t.s.entry(n.Ino, e.Name)
	if err != nil {
		return err
	}
	if isDir(old.mode) {
		n.Nlink--
	}
	if e.Ino == 0 {
		t.note(t.b.Delete(entryKey(n.Ino, e.Name), nil))
		return nil
	}
	if isDir(e.Mode) {
		n.Nlink++
	}
	t.note(t.b.Set(entryKey(n.Ino, e.Name), entry{e.Ino, e.Mode}.append(make([]byte, 0, 12)), nil))
	return nil
}

// ChangeShard implements metadata.Shards.
func (s *shards) ChangeShard(_ context.Context, c metadata.ShardChange) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	defer s.locks.lock(c.Dir).unlock()
	d, err := s.shard(c.Shard)
	if err != nil {
		return err
	}
	switch c.Order {
	case metadata.ShardActivate:
		if err := s.setShardAttr(c.Dir, c.Attr); err != nil {
			return err
		}
		return s.activateShard(c.Dir, d, d.state == shardFilling)
	case metadata.ShardThaw:
		return s.activateShard(c.Dir, d, d.state == shardFrozen && d.freeze == c.Freeze)
	case metadata.ShardFreeze:
		return s.freezeShard(c.Dir, d, c.Freeze)
	case metadata.ShardDrop:
		return s.dropShard(c.Dir, d)
	case metadata.ShardSetAttr:
		return s.setShardAttr(c.Dir, c.Attr)
	}
	return fmt.Errorf("order %d to a shard: %w", c.Order, syscall.EINVAL)
}

// ApplyAnswer applies the answer of a home to the report r.
func (s *shards) ApplyAnswer(r metadata.ShardReport, a metadata.ShardAnswer) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	defer s.locks.lock(r.Dir).unlock()
	d, err := s.shard(r.Shard)
	if err != nil {
		return nil // the shard was replaced
	}
	switch a.State {
	case metadata.ShardActive:
		if err := s.setShardAttr(r.Dir, a.Attr); err != nil {
			return err
		}
		return s.activateShard(r.Dir, d, d.state == shardFilling || d.freeze == r.Freeze && r.Freeze != 0)
	case metadata.ShardUnused:
		if d.state == shardActive {
			s.cfg.Log.WithField("dir", r.Dir.String()).Error("the home does not know this active shard, so its entries cannot be reached: run bivouac check")
			return nil
		}
		return s.dropShard(r.Dir, d)
	}
	return nil
}

// activateShard activates the shard d if do is set.
func (s *shards) activateShard(dir metadata.Ino, d *shardedDir, do bool) error {
	if !do {
		return nil
	}
	open := *d
	open.state, open.freeze = shardActive, 0
	return s.replaceShardMap(dir, &open)
}

func (s *shards) freezeShard(dir metadata.Ino, d *shardedDir, freeze uint64) error {
	if d.state == shardFilling || len(s.txLocks.in(dir)) > 0 {
		return &metadata.Resharding{Dir: dir}
	}
	empty, err := s.empty(dir)
	if err != nil {
		return err
	}
	if !empty {
		return fmt.Errorf("shard of directory %v: %w", dir, syscall.ENOTEMPTY)
	}
	frozen := *d
	frozen.state, frozen.freeze = shardFrozen, freeze
	if err := s.replaceShardMap(dir, &frozen); err != nil {
		return err
	}
	s.MarkChanged(dir)
	return nil
}

func (s *shards) replaceShardMap(dir metadata.Ino, d *shardedDir) error {
	t := s.step()
	defer t.close()
	t.putShardMap(dir, d)
	if err := t.commit(); err != nil {
		return err
	}
	s.sharded.set(dir, d)
	return nil
}

// dropShard removes a shard. It refuses to drop an active one, which has the only copy of its entries: then the home is
// wrong.
func (s *shards) dropShard(dir metadata.Ino, d *shardedDir) error {
	if d.state == shardActive {
		return fmt.Errorf("shard of directory %v is in use: %w", dir, syscall.EBUSY)
	}
	t := s.step()
	defer t.close()
	t.note(t.b.DeleteRange(entryKey(dir, ""), entriesEnd(dir), nil))
	t.note(t.b.Delete(shardKey(dir), nil))
	t.note(t.b.Delete(t.s.dirKey(dir), nil))
	if err := t.commit(); err != nil {
		return err
	}
	s.sharded.set(dir, nil)
	return nil
}

// setShardAttr makes new entries inherit from a, unless a is older. It does not copy times and links.
func (s *shards) setShardAttr(dir metadata.Ino, a metadata.Attr) error {
	t := s.step()
	defer t.close()
	n, err := t.dir(dir)
	if err != nil {
		return err
	}
	if a.Ctime < n.Atime || n.Mode == a.Mode && n.UID == a.UID && n.GID == a.GID && n.Layout == a.Layout {
		return nil
	}
	n.Mode, n.UID, n.GID, n.Layout, n.Atime = a.Mode, a.UID, a.GID, a.Layout, a.Ctime
	t.put(n)
	return t.commitQuiet()
}

// ShardReport returns the report of the shard of dir here; ENOENT if there is none.
func (s *shards) ShardReport(dir metadata.Ino) (metadata.ShardReport, error) {
	if err := s.begin(); err != nil {
		return metadata.ShardReport{}, err
	}
	defer s.end()
	defer s.locks.lock(dir).unlock()
	d, _ := s.sharded.get(dir)
	if d == nil || s.here(dir) {
		return metadata.ShardReport{}, fmt.Errorf("shard of directory %v: %w", dir, syscall.ENOENT)
	}
	t := s.step()
	defer t.close()
	n, err := t.dir(dir)
	if err != nil {
		return metadata.ShardReport{}, err
	}
	return metadata.ShardReport{
		Shard: metadata.Shard{Dir: dir, Gen: d.gen}, Freeze: d.freeze, Subdirs: n.Nlink - 2, Mtime: n.Mtime,
	}, nil
}

// ShardPending reports whether the shard of dir here waits for its home.
func (s *shards) ShardPending(dir metadata.Ino) bool {
	d, _ := s.sharded.get(dir)
	return d != nil && d.state != shardActive
}

// ReadShard implements metadata.ShardReader. It lists a snapshot, because the table in memory changes before the store
// does; until the store has changed, the home lists the entries of all shards.
func (s *shards) ReadShard(ctx context.Context, dir metadata.Ino, epoch metadata.Epoch, after string, limit int) ([]metadata.Entry, error) {
	return s.readDir(ctx, page{dir, after, limit}, func(snap *pebble.Snapshot) error {
		if epoch == 0 {
			return s.notSharded(dir, reader{snap})
		}
		d, err := reader{snap}.shardedDir(dir)
		switch {
		case err != nil:
			return err
		case d != nil && d.Epoch == epoch && d.state == shardActive:
			return nil
		case s.Epoch(dir) != epoch:
			return &metadata.Redirect{Dir: dir, Epoch: s.Epoch(dir)}
		}
		if !s.here(dir) {
			s.MarkChanged(dir)
		}
		return &metadata.Resharding{Dir: dir}
	}, entryOnly)
}

// shardedDir returns the record of a sharded directory; nil if there is none.
func (r reader) shardedDir(dir metadata.Ino) (*shardedDir, error) {
	v, closer, err := r.r.Get(shardKey(dir))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, ioError("metadata store", err)
	}
	defer closer.Close()
	d, err := parseShardedDir(v)
	if err != nil {
		return nil, fmt.Errorf("record of sharded directory %v: %w", dir, err)
	}
	return d, nil
}
