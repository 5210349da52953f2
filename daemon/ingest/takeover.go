package ingest

import (
	"context"
	"fmt"
	"os"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// Adopt implements dataset.Stager: it takes over a stage-in that an earlier run of this daemon, or a lost node,
// coordinated.
func (s *Stager) Adopt(ctx context.Context, ds cluster.Dataset) bool {
	yes, maybe := s.coordinates(ds)
	if yes || maybe {
		return yes
	}
	log := s.cfg.Node.Log().WithField("dataset", ds.Name)
	if !ds.CanRestart() {
		return s.disown(ctx, ds)
	}
	var spec job.Dataset
	if err := node.DecodeJSON([]byte(ds.Spec), &spec); err != nil {
		log.WithError(err).Warn("request of an interrupted stage-in is damaged: the stage-in fails")
		return s.disown(ctx, ds)
	}
	var left *state
	if ds.Reading {
		var err error
		if left, err = s.findState(ctx, ds); err != nil {
			log.WithError(err).Warn("state of an interrupted stage-in not found yet: retrying")
			return false
		}
		if left == nil {
			return s.disown(ctx, ds)
		}
	}
	ds.Attempt++
	if err := s.proposeDataset(ctx, ds); err != nil {
		log.WithError(err).Warn("takeover of an interrupted stage-in not recorded yet: retrying")
		return false
	}
	c := s.takeOver(ds, spec, left)
	s.add(c)
	c.Start()
	return true
}

// takeOver creates the coordinator of the next attempt. left is the state of a single pass; nil means a scan, which
// starts again.
func (s *Stager) takeOver(ds cluster.Dataset, spec job.Dataset, left *state) *Coordinator {
	c := s.newCoordinator(ds, spec.Request(s.cfg.Job.Seed))
	log := c.log().WithField("attempt", ds.Attempt)
	if left != nil {
		c.resume(left)
		log.Info("interrupted stage-in taken over: reading continues")
		return c
	}
	if err := os.RemoveAll(s.cfg.Data.Files.Dir(ds.ID)); err != nil {
		log.WithError(err).Warn("files of an interrupted scan not removed: they take space until the job ends")
	}
	log.Info("interrupted scan starts again")
	return c
}

func (s *Stager) proposeDataset(ctx context.Context, ds cluster.Dataset) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTime)
	defer cancel()
	_, err := s.cfg.Node.Propose(ctx, raftstore.Command{Kind: raftstore.KindSetDataset, Dataset: ds})
	return err
}

// disown records the failure of a stage-in that names this node as coordinator but has no coordinator to record it.
func (s *Stager) disown(ctx context.Context, ds cluster.Dataset) bool {
	ds.Phase = cluster.Failed
	ds.Error = fmt.Sprintf("the daemon on %s was interrupted while it coordinated the stage-in: stage it in again", s.cfg.Job.Hosts[s.cfg.Node.Self()])
	err := s.proposeDataset(ctx, ds)
	if err != nil {
		s.cfg.Node.Log().WithError(err).WithField("dataset", ds.Name).Warn("failure of an interrupted stage-in not recorded yet: retrying")
	}
	return err == nil
}

// Supersede implements dataset.Stager. It does not wait for the source of a superseded attempt, which may hang.
func (s *Stager) Supersede(ds cluster.Dataset) {
	if c := s.coordinator(ds.ID); c != nil && (c.ds.Attempt < ds.Attempt || ds.Phase.Ended()) {
		c.supersede()
		s.remove(c)
	}
}
