package member

import (
	"context"
	"fmt"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// View returns the newest view of this node. The caller must not change it.
func (m *Member) View() cluster.View {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view
}

// Watch returns the view and a channel that is closed when it changes.
func (m *Member) Watch() (cluster.View, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view, m.changed
}

// setView stores a newer view, and ends calls to nodes that are down in it.
func (m *Member) setView(v cluster.View) {
	for _, id := range m.changeView(v) {
		m.cfg.Disconnect(id)
	}
}

// changeView stores a newer view, and returns the nodes that are newly down in it.
func (m *Member) changeView(v cluster.View) (down []metadata.NodeID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.Version <= m.view.Version {
		return nil
	}
	for _, n := range v.Map.Nodes {
		if was, _ := m.view.Map.Node(n.ID); n.State == cluster.Down && was.State != cluster.Down {
			down = append(down, n.ID)
		}
	}
	if m.view.Map.Epoch != v.Map.Epoch {
		m.cfg.Node.Log().WithFields(map[string]any{"epoch": v.Map.Epoch, "up": len(v.Map.Up())}).Info("nodes of the job have changed")
	}
	m.view = v
	close(m.changed)
	m.changed = make(chan struct{})
	return down
}

// Until waits for a view for which ok returns true.
func (m *Member) Until(ctx context.Context, ok func(cluster.View) bool) error {
	for {
		v, changed := m.Watch()
		if ok(v) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.cfg.Ctx.Done():
			return fmt.Errorf("the daemon stops: %w", context.Canceled)
		case <-changed:
		}
	}
}

// take applies the view of a reply. If this node has received another view meanwhile, it reports again, so that in the
// end its view includes the reply's.
func (m *Member) take(ctx context.Context, delta *cluster.Delta) bool {
	if delta == nil {
		return true
	}
	has := m.View()
	if v, ok := m.history.Apply(delta, has); ok {
		m.setView(v)
		return true
	}
	if has.Version >= delta.Version {
		return true
	}
	if has.Version == delta.From {
		m.cfg.Node.Log().WithField("version", delta.Version).Warn("could not apply the leader's change of the map: asking again")
		return false
	}
	return ctx.Err() == nil && m.Report(ctx)
}

// firstAddrs returns the first address of each node.
func firstAddrs(all [][]string) []string {
	first := make([]string, len(all))
	for i, a := range all {
		if len(a) > 0 {
			first[i] = a[0]
		}
	}
	return first
}
