package ingest

import (
	"context"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// setPlan makes the user's order the dataset's access plan, unless the dataset has one. A failure costs only prefetch.
func (c *Coordinator) setPlan(ctx context.Context) {
	p, ok, err := c.accessPlan()
	if c.s.cfg.SetPlan == nil || !ok {
		return
	}
	if err == nil {
		err = c.propose(ctx, p)
	}
	if err != nil && ctx.Err() == nil {
		c.log().WithError(err).WithField("order", c.req.Fill.String()).Warn("access plan not set: nothing is prefetched until you set one with bivouac plan set")
	}
}

// propose sets the plan, unless the dataset has one. It waits until this node knows the dataset, which the leader may
// have registered only a moment ago.
func (c *Coordinator) propose(ctx context.Context, p accessplan.Plan) error {
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	var ds cluster.Dataset
	err := c.s.cfg.Node.Until(ctx, func(v cluster.View) (known bool) {
		ds, known = v.Dataset(c.ds.ID)
		return known
	})
	if err != nil || ds.Plan != "" {
		return err
	}
	_, err = c.s.cfg.SetPlan(ctx, p)
	return err
}

// accessPlan returns the plan that order= stands for; false if order= does not give the order of the reads.
func (c *Coordinator) accessPlan() (p accessplan.Plan, ok bool, err error) {
	o := c.req.Fill
	if p, ok = o.Plan(); !ok && o.Kind == stagein.OrderList {
		p.Kind, ok = accessplan.List, true
		p.Paths, err = walk.ReadLines(c.s.cfg.Source, o.List)
	}
	p.Dataset = c.ds.Name
	return p, ok, err
}
