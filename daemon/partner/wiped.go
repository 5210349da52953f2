package partner

import (
	"context"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/mirror"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// learn waits until a leader has said whether a blank home has a partner. If so, the home was wiped and its partner
// stands in for it. learn reports whether the home may serve.
func (s *Sender) learn(ctx context.Context) bool {
	for b := retry.New(firstPause, longestWait, 0); s.blank.Load() && !s.Replaced(); b.Wait(ctx) {
		if ctx.Err() != nil {
			return false
		}
		err := s.node.Refresh(ctx)
		v := s.node.View()
		n, _ := v.Map.Node(s.node.Self())
		switch {
		case err != nil || v.Version == 0:
		case mirror.Wiped(v.Map, n.ID, false):
			s.log.WithField("partner", n.Partner.Node).Warn("this node lost its names: its partner stands in for it")
			n.Partner.StandsIn = true
			_, err = s.node.Propose(ctx, raftstore.Command{Kind: raftstore.KindPartner, Home: n.ID, Partner: n.Partner})
		default:
			if err = s.bind(cluster.Partner{}); err == nil {
				s.blank.Store(false)
				s.guarded.Store(false)
			}
		}
		if err != nil {
			s.log.WithError(err).Debug("it is not known whether this node's names were lost: asking again")
		}
	}
	return !s.blank.Load()
}
