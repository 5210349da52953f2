package member

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// WaitUp waits until the job's map is complete. Its error names the hosts that did not answer within the start timeout.
func (m *Member) WaitUp(ctx context.Context) error {
	// The leader declares a missing host down at the start timeout. This wait is a little longer, and shorter than the
	// keeper's, which adds three seconds.
	limit := m.cfg.Job.StartLimit()
	ctx, cancel := context.WithTimeout(ctx, limit+min(6*m.cfg.Every, 2*time.Second))
	defer cancel()
	err := m.Until(ctx, func(v cluster.View) bool {
		self, _ := v.Map.Node(m.cfg.Job.Self)
		return v.Version > 0 && !leader.Joining(v.Map) && (node.Serving(self) || len(leader.Absent(v.Map)) > 0)
	})
	switch missing := leader.Absent(m.View().Map); {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no control plane after %v: %s: is a firewall between the nodes, or a host name wrong?", limit, m.silent())
	case err == nil && len(missing) > 0:
		return fmt.Errorf("did not answer within %v: %s: is bivouac installed there, and are the ports open?", limit, strings.Join(missing, ","))
	}
	return err
}

// silent names the members of the control plane that cannot be reached, for the error of a failed start.
func (m *Member) silent() string {
	if v := m.View(); v.Version > 0 {
		return "waiting for " + strings.Join(leader.HostsIn(v.Map, cluster.Joining), ",")
	}
	var bad []string
	for _, id := range leader.Members(len(m.cfg.Job.Hosts)) {
		ctx, cancel := context.WithTimeout(m.cfg.Ctx, time.Second/2)
		var r Reply
		if id != m.cfg.Job.Self && m.cfg.Node.Call(ctx, id, wire.OpReport, m.report(), &r) != nil {
			bad = append(bad, m.cfg.Job.Hosts[id])
		}
		cancel()
	}
	if len(bad) == 0 {
		return "the first hosts answer but have no leader"
	}
	return strings.Join(bad, ",") + " does not answer"
}
