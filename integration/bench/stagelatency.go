package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/integration/slowpfs"
	"github.com/bivouacfs/bivouac/stagein"
)

// armSerial is the time of a scan's requests in sequence.
const armSerial = "one by one"

var stageLatencyFigure = figure{
	name:  "stage-latency",
	about: "the tree of a tar of 130,000 members of 4 KiB, which is scanned by one request for each, from a source that takes 5 or 20 ms for each, through a mount that lets 64 requests be under way",
	run:   stageLatency,
}

func stageLatency(ctx context.Context, b *bench) (err error) {
	s, err := newSite(ctx, filepath.Join(b.home, b.name), slowpfs.Limits{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	members := b.amount(130_000)
	if _, err := (archive{"set.tar", members, 4096}).write(s.under); err != nil {
		return err
	}
	side := func(latency time.Duration) arm {
		name := fmt.Sprint(latency)
		return arm{name, func(ctx context.Context, _ int) error {
			if err := s.client.SetLimits(ctx, slowpfs.Limits{Latency: latency}); err != nil {
				return err
			}
			o := stagein.Options{Fill: stagein.Order{Kind: stagein.OrderSource}, Index: stagein.IndexOff}
			took, err := b.stageSpec(ctx, filepath.Join(b.home, "job"), job.Dataset{Source: s.own("set.tar"), Name: "set", Options: o}, s.wrap)
			if err != nil {
				return err
			}
			b.take("time to the tree, "+name, "s", armBivouac, took.recorded.Seconds())
			b.take("time to the tree, "+name, "s", armSerial, (time.Duration(members) * latency).Seconds())
			return nil
		}}
	}
	if b.quick {
		return b.interleave(ctx, side(time.Millisecond))
	}
	return b.interleave(ctx, side(5*time.Millisecond), side(20*time.Millisecond))
}
