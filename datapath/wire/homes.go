package wire

import "github.com/bivouacfs/bivouac/metadata"

// PrepareReq asks a home to prepare the edits of a transaction.
type PrepareReq struct {
	Tx    metadata.TxID
	Edits []metadata.Edit // at most metadata.MaxEdits
}

func (m *PrepareReq) fields(c *codec) {
	u64(c, &m.Tx)
	list(c, &m.Edits, metadata.MaxEdits, editSize, (*codec).edit)
}

func (c *codec) edit(e *metadata.Edit) {
	u8(c, &e.Kind)
	u64(c, &e.Dir)
	c.string(&e.Name)
	u64(c, &e.Ino)
	u32(c, &e.Mode)
	u64(c, &e.ToDir)
	c.string(&e.ToName)
	optional(c, &e.New, (*codec).newInode)
}

// VoteResp answers with a home's vote.
type VoteResp struct{ Vote metadata.Vote }

func (m *VoteResp) fields(c *codec) {
	optional(c, &m.Vote.Old, (*codec).entry)
	optional(c, &m.Vote.Attr, (*codec).attr)
}

// TxReq names a transaction: commit, abort, outcome.
type TxReq struct{ Tx metadata.TxID }

func (m *TxReq) fields(c *codec) { u64(c, &m.Tx) }

// OutcomeResp answers with the outcome of a transaction.
type OutcomeResp struct{ Outcome metadata.Outcome }

func (m *OutcomeResp) fields(c *codec) {
	u8(c, &m.Outcome)
	c.fail(m.Outcome <= metadata.Aborted)
}

// RenameLockReq takes or releases the lock under which directories are moved.
type RenameLockReq struct {
	Tx     metadata.TxID
	Unlock bool
}

func (m *RenameLockReq) fields(c *codec) {
	u64(c, &m.Tx)
	c.bool(&m.Unlock)
}

// AncestorReq asks for the ancestor of a directory at which a walk up ends.
type AncestorReq struct{ From, Stop metadata.Ino }

func (m *AncestorReq) fields(c *codec) {
	u64(c, &m.From)
	u64(c, &m.Stop)
}

func (c *codec) shard(s *metadata.Shard) {
	u64(c, &s.Dir)
	u64(c, &s.Gen)
}

// ShardCreateReq creates an empty shard of a directory.
type ShardCreateReq struct{ metadata.NewShard }

func (m *ShardCreateReq) fields(c *codec) {
	c.shard(&m.Shard)
	u64(c, &m.Epoch)
	u64(c, &m.Seed)
	c.attr(&m.Attr)
	list(c, &m.Nodes, unlimited, 2, u16[metadata.NodeID])
}

// ShardFillReq adds at most MaxEntries entries to a shard that is not active yet.
type ShardFillReq struct {
	metadata.Shard
	Entries []metadata.Entry
}

func (m *ShardFillReq) fields(c *codec) {
	c.shard(&m.Shard)
	list(c, &m.Entries, unlimited, entrySize, (*codec).entry)
}

// ShardChangeReq is an order to a shard.
type ShardChangeReq struct{ metadata.ShardChange }

func (m *ShardChangeReq) fields(c *codec) {
	c.shard(&m.Shard)
	u8(c, &m.Order)
	u64(c, &m.Freeze)
	c.attr(&m.Attr)
}

// ShardReportReq reports the state of a shard to the home of its directory.
type ShardReportReq struct{ metadata.ShardReport }

func (m *ShardReportReq) fields(c *codec) {
	c.shard(&m.Shard)
	u64(c, &m.Freeze)
	u32(c, &m.Subdirs)
	u64(c, &m.Mtime)
}

// ShardReportResp is the home's answer to a ShardReportReq.
type ShardReportResp struct{ metadata.ShardAnswer }

func (m *ShardReportResp) fields(c *codec) {
	u8(c, &m.State)
	c.attr(&m.Attr)
}

// ShardReadReq lists the names in one node's shard of a directory that was split in Epoch; 0: the directory is not
// sharded.
type ShardReadReq struct {
	ReadDirReq
	Epoch metadata.Epoch
}

func (m *ShardReadReq) fields(c *codec) {
	u64(c, &m.Epoch)
	m.ReadDirReq.fields(c)
}
