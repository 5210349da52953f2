package main

import (
	"context"
	"errors"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// settle waits until this node is up again and its datasets can be read. A process with an open file or its working
// directory there must not find it missing. If that takes longer than processes may wait, the mount is served, and
// unknown names are EIO until a leader has answered.
func (n *node) settle() {
	n.daemon.SetReady()
	settled := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-n.ended
		cancel()
	}()
	go func() {
		defer cancel()
		settled <- settle(ctx, n.daemon, n.mount.Settle)
	}()
	select {
	case <-settled:
	case <-time.After(n.job.GiveUp()): // processes are blocked meanwhile
		n.log.Warn("not all datasets of the previous daemon can be read yet: programs that use them may get I/O errors until a leader answers")
	}
}

// views is the part of *daemon.Daemon that settle needs: its view of the job.
type views interface {
	Refresh(ctx context.Context) error
	WaitUp(ctx context.Context) error
	View() cluster.View
	Datasets() []cluster.Dataset
}

// settle calls known once all published datasets can be read, after any number of attempts.
func settle(ctx context.Context, d views, known func()) error {
	b := retry.New(10*time.Millisecond, time.Second, 0)
	for {
		err := awaitDatasets(ctx, d)
		if err == nil {
			known()
			return nil
		}
		if !b.Wait(ctx) {
			return errors.Join(err, ctx.Err())
		}
	}
}

// awaitDatasets waits until all published datasets can be read. Until a leader has answered, the view of a node in the
// control group passes through all earlier states, so it may contain no datasets.
func awaitDatasets(ctx context.Context, d views) error {
	err := d.Refresh(ctx)
	if err == nil {
		err = d.WaitUp(ctx)
	}
	for b := retry.New(time.Millisecond, 100*time.Millisecond, 0); err == nil && !readable(d) && b.Wait(ctx); {
	}
	return errors.Join(err, ctx.Err())
}

// readable reports whether all published datasets can be read.
func readable(d views) bool {
	published := 0
	for _, ds := range d.View().Datasets {
		if ds.Phase != cluster.Staging && !ds.Phase.Ended() {
			published++
		}
	}
	return len(d.Datasets()) >= published
}
