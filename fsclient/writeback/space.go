package writeback

import (
	"context"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// spaceFresh is how long a node's answer counts, if it is not used up.
	spaceFresh = time.Second
	// spaceWait is how long a node is waited for.
	spaceWait = 2 * time.Second
	// mayClaim is the most that a client claims of one answer.
	mayClaim = 31 << 20
	// spaceEach is what a node must have free for each client of the job: what one
	// has buffered when it asks (Memory), what it claims of the answer, and something
	// for the ends of pages. Then buffered bytes find room however many clients
	// buffer, unless others write through all of it meanwhile.
	spaceEach = Memory + mayClaim + 1<<20
)

// freeSpace is how much space the nodes have left, as they said last.
type freeSpace struct {
	mu    sync.Mutex
	nodes map[metadata.NodeID]nodeSpace // under mu
}

type nodeSpace struct {
	free    int64
	at      time.Time
	claimed int64  // of free, by what was buffered since
	answer  uint64 // counts the answers of the node
}

func (s *freeSpace) init() { s.nodes = make(map[metadata.NodeID]nodeSpace) }

// claim claims n bytes on the node id, if least stay free (ok). If the last answer
// does not tell (!known), the node has to be asked, and set called with answer.
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

// set takes a node's answer. If another one has come since the node was asked, that
// one counts, with what was claimed of it.
func (s *freeSpace) set(id metadata.NodeID, answer uint64, free int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[id].answer == answer {
		s.nodes[id] = nodeSpace{free: free, at: now, answer: answer + 1}
	}
}

// hasRoom claims n bytes on a node. One that does not answer has none.
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
