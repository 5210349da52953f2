package home

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/opens"
)

const (
	askWorkers  = 8                // concurrent recalls
	maxOrphans  = 1 << 16          // orphans of an earlier run that one start adopts; the next start adopts more
	recallTime  = 10 * time.Second // limit for one answer
	recallPause = time.Second      // pause before a failed recall is repeated
	retryMax    = 30 * time.Second // longest pause between attempts to remove a file
)

// recoverOrphans registers the orphans that the home's last run left behind. They are removed once all nodes have
// reported their open files. It must run before the home serves requests.
func (s *Server) recoverOrphans() error {
	if s.Fresh() {
		return nil
	}
	for _, n := range s.node.View().Map.Nodes {
		if !s.near(n.ID) {
			s.files.Recover(n.ID)
		}
	}
	n := 0
	err := s.Orphans(context.Background(), func(a metadata.Attr) bool {
		s.files.Orphaned(a.Ino, true)
		n++
		return n < maxOrphans
	})
	if err != nil {
		return fmt.Errorf("metadata store: %w", err)
	}
	return nil
}

// places returns the objects that the file a may have. For a file that was created in an earlier run of this home,
// these are the objects on its whole stripe: a writer may have died in that run without reporting the file's size, and
// the home no longer knows it.
func (s *Server) places(_ context.Context, a metadata.Attr, all bool) (places []opens.Place, err error) {
	m := s.node.View().Map
	if a.Layout.Epoch > m.Epoch {
		return nil, fmt.Errorf("map of epoch %d: %w", a.Layout.Epoch, syscall.ESTALE)
	}
	order := m.Order(a.Ino, a.Layout)
	all = all || s.Earlier(a.Ino)
	if !a.Object().Copied() {
		for k, id := range order {
			if all || datapath.ObjectSize(a.Layout.Chunk(), len(order), k, a.Size) > 0 {
				places = append(places, opens.Place{Node: id, Object: a.Object()})
			}
		}
		return places, nil
	}
	parts := cluster.Parts(a.Ino, a.Layout, order)
	for k, p := range parts {
		if !all && datapath.ObjectSize(a.Layout.Chunk(), len(parts), k, a.Size) == 0 {
			continue
		}
		for _, id := range m.Holders(p) {
			places = append(places, opens.Place{Node: id, Object: p.Object(id)})
		}
	}
	return places, nil
}

// removeObjects removes objects on a node. If the node is down, the objects stay until it returns.
func (s *Server) removeObjects(ctx context.Context, id metadata.NodeID, inos []metadata.Ino) error {
	if err := s.cfg.Serves(); err != nil {
		return err
	}
	if s.near(id) {
		return s.removeHere(ctx, inos)
	}
	if n, ok := s.node.View().Map.Node(id); !ok || n.State == cluster.Down {
		return fmt.Errorf("node %d: %w", id, syscall.EHOSTDOWN)
	}
	c := rpc.Call{Op: wire.OpRemoveObjects, Body: &wire.InosReq{Inos: inos}}
	return s.node.To(id).Do(ctx, &c)
}

func (s *Server) removeHere(ctx context.Context, inos []metadata.Ino) error {
	var errs []error
	for _, ino := range inos {
		if ino.Sealed() {
			return fmt.Errorf("inode %v: %w", ino, syscall.EROFS)
		}
		errs = append(errs, s.cfg.Data.Remove(ctx, ino))
	}
	return errors.Join(errs...)
}

// followHolders updates the registry of open files when the map changes: a lost node has no open files, and a returning
// node is asked for its open files.
func (s *Server) followHolders(ctx context.Context) {
	asked := make(map[metadata.NodeID]metadata.Epoch) // by node that has answered: the epoch since which the node is Up
	if s.Fresh() {
		for _, n := range s.node.View().Map.Nodes {
			asked[n.ID] = 0 // the node had no file open before
		}
	}
	var current <-chan struct{} // a fresh home has no old view
	if !s.Fresh() {
		current = s.followsLeader()
	}
	for {
		v, changed := s.node.Watch()
		var again <-chan time.Time
		if s.askHolders(ctx, v, asked, current) {
			again = time.After(recallPause)
		}
		s.files.Retry()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-current:
			current = nil
		case <-again:
		}
	}
}

// retryRemovals retries failed removals with back-off. It begins with a short pause, because a daemon that died usually
// restarts at once.
func (s *Server) retryRemovals(ctx context.Context) {
	for b := retry.New(recallPause, retryMax, 0); b.Wait(ctx); {
		if s.files.Retry() == 0 {
			b.Reset()
		}
	}
}

// followsLeader returns a channel that is closed once the leader has confirmed this node's view. A restarting group
// member begins with an old view, in which a node that has returned since may still be down.
func (s *Server) followsLeader() <-chan struct{} {
	c := make(chan struct{})
	s.node.Spawn(func(ctx context.Context) {
		for s.node.Refresh(ctx) != nil && node.Pause(ctx, recallPause) == nil {
			s.log.Debug("the leader has not confirmed the cluster view yet; trying again")
		}
		close(c)
	})
	return c
}

// askHolders asks every Up node that has not answered since it came up, and reports whether answers are missing. While
// current is not nil the view may be old, and no node counts as lost.
func (s *Server) askHolders(ctx context.Context, v cluster.View, asked map[metadata.NodeID]metadata.Epoch, current <-chan struct{}) (missing bool) {
	if v.Version == 0 {
		return false // the next view wakes the caller
	}
	var g errgroup.Group
	g.SetLimit(askWorkers)
	answers := make([]error, len(v.Map.Nodes))
	for i, n := range v.Map.Nodes {
		since, ok := asked[n.ID]
		switch {
		case s.near(n.ID), ok && (since == 0 || since == n.Since) && n.State == cluster.Up:
		case n.State == cluster.Up:
			g.Go(func() error {
				answers[i] = s.askHolder(ctx, n.ID)
				return nil
			})
			asked[n.ID] = n.Since
		case n.State == cluster.Joining || current != nil:
		default:
			s.files.Lost(n.ID)
			delete(asked, n.ID)
		}
	}
	_ = g.Wait() // errors are in answers
	for i, err := range answers {
		if err != nil {
			s.log.WithError(err).WithField("host", v.Map.Nodes[i].Host).Debug("could not ask a node for its open files; trying again")
			delete(asked, v.Map.Nodes[i].ID)
			missing = true
		}
	}
	return missing
}

// askHolder asks a node for all files of this home that it has open.
func (s *Server) askHolder(ctx context.Context, id metadata.NodeID) error {
	s.files.Await(id)
	q := metadata.Recall{Run: s.cfg.Run}
	for {
		r, err := s.recall(ctx, id, q)
		if err != nil {
			return err
		}
		s.files.Add(metadata.Holder{Node: id, Run: r.Run}, r.Files)
		if !r.More || len(r.Files) == 0 {
			s.files.Answered(id)
			return nil
		}
		q.After = r.Files[len(r.Files)-1].Ino
	}
}

// followOrphans finds lost close reports, even if the map does not change.
func (s *Server) followOrphans(ctx context.Context) {
	for node.Pause(ctx, 5*s.cfg.SweepDelay+s.sweepPause()) == nil {
		s.confirmHolders(ctx)
	}
}

// confirmHolders asks the nodes that hold orphans open whether they still do.
func (s *Server) confirmHolders(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(askWorkers)
	m := s.node.View().Map
	for id, inos := range s.files.OrphanHolders() {
		if n, ok := m.Node(id); ok && n.State != cluster.Down {
			g.Go(func() error {
				s.confirmHolder(ctx, id, inos)
				return nil
			})
		}
	}
	_ = g.Wait() // no function fails
}

// confirmHolder asks a node whether it still has files open. A node that does not answer is asked again later.
func (s *Server) confirmHolder(ctx context.Context, id metadata.NodeID, inos []metadata.Ino) {
	for len(inos) > 0 && ctx.Err() == nil {
		n := min(len(inos), wire.MaxOpened)
		r, err := s.recall(ctx, id, metadata.Recall{Run: s.cfg.Run, Only: inos[:n]})
		if err != nil {
			return
		}
		s.files.Confirm(metadata.Holder{Node: id, Run: r.Run}, r.Floor, inos[:n], r.Files)
		inos = inos[n:]
	}
}

func (s *Server) recall(ctx context.Context, id metadata.NodeID, q metadata.Recall) (metadata.Recalled, error) {
	q.Home = s.node.Self()
	if s.near(id) {
		return s.onRecall(q), nil
	}
	ctx, cancel := context.WithTimeout(ctx, recallTime)
	defer cancel()
	var r wire.RecallResp
	c := rpc.Call{Op: wire.OpRecall, Body: &wire.RecallReq{Run: q.Run, After: q.After, Only: q.Only}, Reply: &r}
	err := s.node.To(id).Do(ctx, &c)
	return r.Recalled, err
}

// onRecall returns the files of a home that this node's client has open. Before the client has started there are none.
func (s *Server) onRecall(q metadata.Recall) metadata.Recalled {
	if c := s.client.Load(); c != nil {
		return (*c).Recall(q)
	}
	return metadata.Recalled{Run: s.cfg.Run}
}

func openReply(h metadata.Holding, err error) (node.Appender, error) {
	if err != nil && h.Attr.Ino == 0 {
		return nil, err
	}
	return &wire.OpenResp{Holding: h}, err
}

func (s *Server) openHandlers() node.Handlers {
	by := func(r *rpc.Request, run metadata.Run) metadata.Holder { return metadata.Holder{Node: r.Peer, Run: run} }
	return node.Handlers{
		wire.OpOpen: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.OpenReq) (node.Appender, error) {
			return openReply(s.Open(ctx, by(r, q.Run), q.Ino, q.Opening))
		}),
		wire.OpOpenAhead: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.OpenAheadReq) (node.Appender, error) {
			as, run, err := s.files.OpenAhead(ctx, by(r, q.Run), q.Files)
			return &wire.OpenAheadResp{Run: run, Attrs: as}, err
		}),
		wire.OpCreateOpen: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.CreateOpenReq) (node.Appender, error) {
			return openReply(s.CreateOpen(ctx, by(r, q.Run), q.Opening, q.Dir, q.Name, q.New))
		}),
		wire.OpClosed: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.ClosedReq) (node.Appender, error) {
			return nil, s.Closed(ctx, by(r, q.Run), q.Files)
		}),
		wire.OpAppend: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.AppendReq) (node.Appender, error) {
			p, err := s.Append(ctx, by(r, q.Run), q.Req)
			return &wire.PlaceResp{Place: p}, err
		}),
		wire.OpRecall: node.HandleFrom(func(_ context.Context, r *rpc.Request, q *wire.RecallReq) (node.Appender, error) {
			if !r.StandIn { // on a stand-in request, the run is not that of the node's client
				s.heardRun(by(r, q.Run))
				s.files.NoteRun(by(r, q.Run)) // closes the files of its earlier runs
			}
			return &wire.RecallResp{Recalled: s.onRecall(metadata.Recall{Home: r.Peer, Run: q.Run, Only: q.Only, After: q.After})}, nil
		}),
		wire.OpRemoveObjects: node.HandleFrom(func(ctx context.Context, _ *rpc.Request, q *wire.InosReq) (node.Appender, error) {
			return nil, s.removeHere(ctx, q.Inos)
		}),
	}
}
