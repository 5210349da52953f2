package daemon

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// warnings reports lost and returned nodes in the job's output, and a full node in the log. It records how long no
// leader has answered.
type warnings struct {
	d *Daemon

	mu       sync.Mutex
	heard    time.Time // guarded by mu; the last answer of a leader, or the start
	notifies bool      // guarded by mu; this node writes to the job's output
	full     bool      // guarded by mu; already logged
}

// answered records that a leader has answered, and whether this node notifies the user.
func (w *warnings) answered(notifies bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard, w.notifies = time.Now(), notifies
}

// leaderSilence is how long a leader may be silent before status says so: an election takes less.
const leaderSilence = 5 * time.Second

// silence returns how long no leader has answered; 0 while that is normal.
func (w *warnings) silence(at time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := at.Sub(w.heard); n > leaderSilence {
		return n
	}
	return 0
}

// spaceEvery is the pause between two checks of this node's space.
const spaceEvery = 5 * time.Second

// run follows the map and the space of this node until ctx ends.
func (w *warnings) run(ctx context.Context) {
	t := time.NewTicker(spaceEvery)
	defer t.Stop()
	was, _ := w.d.Watch()
	for {
		v, changed := w.d.Watch()
		w.nodes(was, v)
		was = v
		if s, err := w.d.data.Space(ctx); err == nil {
			w.space(s)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-t.C:
		}
	}
}

func (w *warnings) nodes(was, now cluster.View) {
	lines, lost := nodeLines(was, now)
	if len(lines) == 0 {
		return
	}
	for _, l := range lines {
		w.d.log.Warn(l)
	}
	w.mu.Lock()
	notifies := w.notifies
	w.mu.Unlock()
	if notifies {
		for _, host := range lost {
			if w.d.cfg.Lost != nil {
				w.d.cfg.Lost(host)
			}
		}
		w.d.notifier.Tell("bivouac: " + strings.Join(lines, "\nbivouac: ") + "\n")
	}
}

// nodeLines describes the serving nodes that were lost, the nodes that are back, and the completed rebuild of copies.
func nodeLines(was, now cluster.View) (lines, lost []string) {
	if was.Version == 0 || now.Closing {
		return nil, nil
	}
	if now.Map.RestoredBy() > was.Map.RestoredBy() {
		line := "all files with copies=2 have two copies again"
		if n := len(now.Map.Restored); len(now.Map.Restored[n-1].Without) > 0 {
			line += ", except those whose names are lost"
		}
		lines = append(lines, line)
	}
	for _, n := range now.Map.Nodes {
		old, known := was.Map.Node(n.ID)
		if known && old.State == n.State && !old.Partner.StandsIn && !n.Partner.StandsIn {
			continue // Names is expensive
		}
		names, before := now.Map.Names(n.ID), was.Map.Names(n.ID)
		served := names.State == cluster.NamesServed
		switch {
		case !known:
		case names.State == cluster.NamesLost && before.State == cluster.NamesServed:
			lines = append(lines, fmt.Sprintf("files of %s are unavailable until %s, which had taken over their names, returns", n.Host, names.Node))
		case served && before.State == cluster.NamesServed && names.Node != before.Node:
			lines = append(lines, fmt.Sprintf("%s has taken over the names of files of %s from %s", names.Node, n.Host, before.Node))
		case served && before.State != cluster.NamesServed && n.State != cluster.Down:
			lines = append(lines, fmt.Sprintf("%s has started with an empty disk: %s has taken over the names of its files", n.Host, names.Node))
		}
		switch {
		case !known || old.State == n.State:
		case n.State == cluster.Down && node.Serving(old):
			lines = append(lines, "no answer from "+n.Host+": its daemon, its machine or its network is down. "+node.LossText(n.ID, n.Host, names))
			lost = append(lost, n.Host)
		case n.State == cluster.Up && old.State == cluster.Down && len(n.Terms) > 0:
			line := n.Host + " is back: its data can be read again"
			if served {
				line += "; " + names.Node + " keeps the names of its files"
			}
			lines = append(lines, line)
		}
	}
	return lines, lost
}

// space logs when this node becomes full, and when it no longer is.
func (w *warnings) space(s datapath.Space) {
	w.mu.Lock()
	was := w.full
	w.full = s.Full()
	w.mu.Unlock()
	log := w.d.log.WithFields(logrus.Fields{"free": s.Free, "capacity": s.Capacity, "objects": s.Objects})
	switch {
	case w.full && !was:
		log.Warn("this node is full: writes to it get ENOSPC, and dataset files without room are read from the source; remove files of scratch, or give the job more nodes or a higher capacity=")
	case was && !w.full:
		log.Info("this node has room again")
	}
}
