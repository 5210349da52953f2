package writeback

import (
	"context"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// spaceFresh is how long a node's answer is valid, if it is not used up.
	spaceFresh = time.Second
	// spaceWait bounds the wait for a node's answer.
	spaceWait = 2 * time.Second
	// mayClaim bounds what a client claims of one answer.
	mayClaim = 31 << 20
	// spaceEach is the space that a node must have free for each client of the job: the bytes that the client has
	// buffered when it asks (Memory), its claims on the answer, and something for the ends of pages. Then buffered
	// bytes find room however many clients buffer, unless writes by others use all of it meanwhile.
	spaceEach = Memory + mayClaim + 1<<20
)

// freeSpace is the free space of the nodes, by their last answers.
type freeSpace struct {
	mu    sync.Mutex
	nodes map[metadata.NodeID]nodeSpace // under mu
}

type nodeSpace struct {
	free    int64
	at      time.Time
	claimed int64  // of free, by bytes buffered since
	answer  uint64 // counts the answers of the node
}

func (s *freeSpace) init() { s.nodes = make(map[metadata.NodeID]nodeSpace) }

// claim claims n bytes on the node id, if least stay free (ok). If the last answer does not settle that (!known), the
// caller must ask the node, and call set with answer.
func (s *freeSpace) claim(id metadata.NodeID, n, least int64, now time.Time) (ok, known bool, answer uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, known := s.nodes[id]
	switch {
	case !known || now.Sub(have.at) >= spaceFresh:
		return false, false, have.answer
	case have.free < least:
		return false, true, 0
	case have.claimed+n > mayClaim || have.free-have.claimed-n < least:
		return false, have.claimed == 0, have.answer
	}
	have.claimed += n
	s.nodes[id] = have
	return true, true, 0
}

// set records a node's answer. If another answer has arrived since the node was asked, that one stays, with the claims
// on it.
func (s *freeSpace) set(id metadata.NodeID, answer uint64, free int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[id].answer == answer {
		s.nodes[id] = nodeSpace{free: free, at: now, answer: answer + 1}
	}
}

// hasRoom reserves n bytes of a node's free space. A node that does not answer counts as full.
func (p *Pool) hasRoom(ctx context.Context, id metadata.NodeID, n int64) bool {
	least := int64(p.client.Nodes()) * spaceEach
	ok, known, answer := p.space.claim(id, n, least, p.now())
	if known {
		return ok
	}
	ctx, cancel := context.WithTimeout(ctx, spaceWait)
	defer cancel()
	free, err := p.client.Free(ctx, id)
	if err != nil {
		free = 0
	}
	p.space.set(id, answer, free, p.now())
	ok, _, _ = p.space.claim(id, n, least, p.now())
	return ok
}
