package member

import (
	"context"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
)

// Insist repeats fn, a call to node id, while retry accepts its error and the map says that the node serves, but for no
// longer than the patience most.
func (m *Member) Insist(ctx context.Context, id metadata.NodeID, most time.Duration, retry func(error) bool, fn func() error) error {
	patience := patience{m, time.Now(), most}
	for {
		err := fn()
		if n, _ := m.View().Map.Node(id); err == nil || !retry(err) || !node.Serving(n) {
			return err
		}
		if patience.over() || node.Pause(ctx, insistPause) != nil {
			return err
		}
	}
}

// insistPause is the pause between two tries of Insist.
const insistPause = 100 * time.Millisecond

// patience is how long calls to a silent node are repeated: as long as the leader of the group may take to declare the
// node down. A newly elected leader starts to count again, and so does the patience, a limited number of times.
type patience struct {
	m     *Member
	begun time.Time
	most  time.Duration
}

// leadersLost is how many leaders may be lost in a row.
const leadersLost = 4

func (p patience) over() bool {
	p.m.mu.Lock()
	since := p.m.leading.since
	p.m.mu.Unlock()
	return p.overAt(time.Now(), since)
}

// overAt reports whether the patience has ended at at, with a leader that was elected at since.
func (p patience) overAt(at, since time.Time) bool {
	if since.Before(p.begun) {
		since = p.begun
	}
	return at.Sub(since) > p.most || at.Sub(p.begun) > leadersLost*p.most
}
