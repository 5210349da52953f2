package daemon

import (
	"context"
	"fmt"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// View is the newest view that this node has. It must not be changed.
func (d *Daemon) View() cluster.View {
	d.viewMu.Lock()
	defer d.viewMu.Unlock()
	return d.view
}

// Watch returns the view and a channel that is closed when it changes.
func (d *Daemon) Watch() (cluster.View, <-chan struct{}) {
	d.viewMu.Lock()
	defer d.viewMu.Unlock()
	return d.view, d.changed
}

// setView takes a newer view. Calls to nodes that are down in it end.
func (d *Daemon) setView(v cluster.View) {
	for _, id := range d.changeView(v) {
		d.peers.Disconnect(id)
	}
}

// changeView returns the nodes that are down now and were not before.
func (d *Daemon) changeView(v cluster.View) (down []metadata.NodeID) {
	d.viewMu.Lock()
	defer d.viewMu.Unlock()
	if v.Version <= d.view.Version {
		return nil
	}
	for _, n := range v.Map.Nodes {
		if was, _ := d.view.Map.Node(n.ID); n.State == cluster.Down && was.State != cluster.Down {
			down = append(down, n.ID)
		}
	}
	if d.view.Map.Epoch != v.Map.Epoch {
		d.log.WithFields(map[string]any{"epoch": v.Map.Epoch, "up": len(v.Map.Up())}).Info("nodes of the job have changed")
	}
	d.view = v
	close(d.changed)
	d.changed = make(chan struct{})
	return down
}

// Until waits for a view for which ok is true.
func (d *Daemon) Until(ctx context.Context, ok func(cluster.View) bool) error {
	for {
		v, changed := d.Watch()
		if ok(v) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.ctx.Done():
			return fmt.Errorf("the daemon stops: %w", context.Canceled)
		case <-changed:
		}
	}
}

// take takes the view of a reply. If this node has got another view meanwhile, it reports again, so that it
// knows at the end what the reply says.
func (d *Daemon) take(ctx context.Context, delta *cluster.Delta) bool {
	if delta == nil {
		return true
	}
	has := d.View()
	if v, ok := d.history.Apply(delta, has); ok {
		d.setView(v)
		return true
	}
	if has.Version >= delta.Version {
		return true
	}
	if has.Version == delta.From {
		d.log.WithField("version", delta.Version).Warn("the leader's change of the map does not fit this job: reporting again")
		return false
	}
	return ctx.Err() == nil && d.reportOnce(ctx)
}

// firstAddrs is the first address of each node.
func firstAddrs(all [][]string) []string {
	first := make([]string, len(all))
	for i, a := range all {
		if len(a) > 0 {
			first[i] = a[0]
		}
	}
	return first
}
