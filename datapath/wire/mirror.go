package wire

import (
	"encoding/binary"

	"github.com/bivouacfs/bivouac/metadata"
)

// MirrorReq is a message of a home, or of the node that stands in for it, to the partner (package mirror).
type MirrorReq struct {
	Home     metadata.NodeID
	Seat     metadata.Epoch
	Gen, Seq uint64
	Complete bool
	Batches  [][]byte
}

func (m *MirrorReq) fields(c *codec) {
	u16(c, &m.Home)
	u64(c, &m.Seat)
	u64(c, &m.Gen)
	u64(c, &m.Seq)
	c.bool(&m.Complete)
	list(c, &m.Batches, unlimited, 4, (*codec).bytes)
}

// MirrorResp answers a MirrorReq. Last is the last stream known to the partner; Full: the disk of the partner is full.
type MirrorResp struct {
	Verdict uint8
	Last    uint64
	Full    bool
}

func (m *MirrorResp) fields(c *codec) {
	u8(c, &m.Verdict)
	u64(c, &m.Last)
	c.bool(&m.Full)
}

// StandInReq is a request from or to a home that another node stands in for. It is answered as Op is.
type StandInReq struct {
	From, To metadata.NodeID // a node, or the home for which it stands in
	Op       Op
	Request  Message // when encoding; nil: empty
	Body     []byte  // when decoding
}

func (m *StandInReq) fields(c *codec) {
	u16(c, &m.From)
	u16(c, &m.To)
	u16(c, &m.Op)
	if !c.encoding || m.Request == nil {
		c.bytes(&m.Body)
		return
	}
	at := len(c.b)
	c.b = append(c.b, 0, 0, 0, 0)
	m.Request.fields(c)
	binary.LittleEndian.PutUint32(c.b[at:], uint32(len(c.b)-at-4))
}
