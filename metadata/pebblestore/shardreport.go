package pebblestore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/varint"
)

// ReportShard implements metadata.Shards.
func (s *shards) ReportShard(_ context.Context, by metadata.NodeID, r metadata.ShardReport) (metadata.ShardAnswer, error) {
	if err := s.begin(); err != nil {
		return metadata.ShardAnswer{}, err
	}
	defer s.end()
	if !s.here(r.Dir) || by == s.cfg.Self {
		return metadata.ShardAnswer{}, fmt.Errorf("report of a shard of directory %v: %w", r.Dir, syscall.EINVAL)
	}
	defer s.locks.lock(r.Dir).unlock()
	d, g := s.sharded.get(r.Dir)
	switch {
	case g != nil && g.gen == r.Gen && (g.dirty != nil || g.freeze == r.Freeze):
		return metadata.ShardAnswer{State: metadata.ShardWait}, nil
	case d == nil || d.gen != r.Gen:
		return metadata.ShardAnswer{State: metadata.ShardUnused}, nil
	}
	a, err := s.applyReport(by, r)
	return metadata.ShardAnswer{State: metadata.ShardActive, Attr: a}, err
}

// applyReport applies the report of an active shard to its directory. It ignores times older than the last change here,
// which may have set the times explicitly.
func (s *shards) applyReport(by metadata.NodeID, r metadata.ShardReport) (metadata.Attr, error) {
	t := s.step()
	defer t.close()
	n, err := t.dir(r.Dir)
	if err != nil {
		return metadata.Attr{}, err
	}
	before, err := s.subdirs(r.Dir, by)
	if err != nil {
		return metadata.Attr{}, err
	}
	if r.Subdirs == before && r.Mtime <= n.Ctime {
		return n.Attr, nil
	}
	if r.Subdirs != before {
		n.Nlink += r.Subdirs - before
		t.note(t.b.Set(shardReportKey(r.Dir, by), binary.AppendUvarint(nil, uint64(r.Subdirs)), nil))
	}
	if r.Mtime > n.Ctime {
		n.Mtime, n.Ctime = r.Mtime, r.Mtime
	}
	t.put(n)
	return n.Attr, t.commit()
}

// subdirs returns the number of subdirectories in the last report of node by.
func (s *shards) subdirs(dir metadata.Ino, by metadata.NodeID) (uint32, error) {
	v, err := s.get(shardReportKey(dir, by))
	if errors.Is(err, syscall.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	d := varint.Decoder{B: v}
	n := d.Uint32()
	if !d.Whole() {
		return 0, fmt.Errorf("record of a shard of directory %v: %w", dir, syscall.EIO)
	}
	return n, nil
}

// Shards returns the shard of dir on this node, its home, and the nodes of all shards; no nodes if dir is not sharded.
func (s *shards) Shards(dir metadata.Ino) (metadata.Shard, []metadata.NodeID) {
	d, _ := s.sharded.get(dir)
	if d == nil || !s.here(dir) {
		return metadata.Shard{}, nil
	}
	return metadata.Shard{Dir: dir, Gen: d.gen}, d.Nodes
}

// ShardDirs returns the directories of other homes with a shard here.
func (s *shards) ShardDirs() []metadata.Ino {
	s.sharded.mu.RLock()
	defer s.sharded.mu.RUnlock()
	var all []metadata.Ino
	for dir := range s.sharded.dirs {
		if !s.here(dir) {
			all = append(all, dir)
		}
	}
	return all
}
