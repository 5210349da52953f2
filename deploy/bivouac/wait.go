package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/deploy/show"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

func waitCmd() *cobra.Command {
	var w which
	var until string
	var timeout time.Duration
	var output bool
	var first int64
	c := &cobra.Command{
		Use:   "wait [NAME]...",
		Short: "Wait until the datasets are readable on all nodes",
		Long: `Wait shows progress and returns when all datasets, or those named, are readable
on all nodes. --for says when that is:

    manifest   when the whole tree appears; files that have not arrived are
               fetched when they are read. Archives that are staged in a single
               pass appear when they are complete
    all        when every file has been staged
    none       at once

--first N returns when the first N samples of the order are on the nodes, if the
stage-in has an order=seed:S, another sampler or order=list:FILE.
Wait fails if a stage-in failed. If entries were left out (on-error=skip), or
files could not be fetched because the source has changed, the exit status is 3.`,
		Example: "  bivouac wait --for all --timeout 30m\n  bivouac wait imagenet --first 50000",
		RunE: func(c *cobra.Command, names []string) error {
			if !slices.Contains([]string{"", "manifest", "all", "none"}, until) {
				return fmt.Errorf("--for %s: want manifest, all or none", until)
			}
			ctl, err := w.ctl()
			if err != nil {
				return err
			}
			ctx := c.Context()
			if output {
				noteOutput(ctx, ctl)
			}
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			return waitFor(ctx, ctl, until, first, names, c.ErrOrStderr())
		},
	}
	w.flags(c)
	c.Flags().StringVar(&until, "for", "", "manifest, all or none (default: the job's wait= option)")
	c.Flags().Int64Var(&first, "first", 0, "return when the first N samples of the order= of the stage-in are on the nodes")
	timeVar(c.Flags(), &timeout, "timeout", 0, "give up after this time (default: never)")
	c.Flags().BoolVar(&output, "job-output", false, "standard error or output is the job's output file")
	must(c.Flags().MarkHidden("job-output")) // for the plugin
	return c
}

// noteOutput sends the daemon the path of the job's output, if that is a file. A failure does not fail the job here: a
// daemon that does not answer fails the wait.
func noteOutput(ctx context.Context, ctl *daemon.Ctl) {
	for _, f := range []*os.File{os.Stderr, os.Stdout} {
		if o, ok := stageout.OutputOf(f); ok {
			_ = ctl.SetOutput(ctx, o)
			return
		}
	}
}

// terminal reports whether w is a terminal.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// waitFor waits for the datasets in names (none: all that the job wants or has).
func waitFor(ctx context.Context, ctl *daemon.Ctl, until string, first int64, names []string, w io.Writer) error {
	p := &show.Progress{W: w, Terminal: terminal(w), Path: pathOf}
	defer p.Close()
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for ask := ctl.FreshStatus; ; ask = ctl.Status {
		s, err := ask(ctx)
		if ctx.Err() != nil {
			return gaveUp(ctx, s, names)
		}
		if err != nil {
			return err
		}
		until = cmp.Or(until, s.Wait)
		if until == "none" {
			return nil
		}
		if err := unknown(s, names); err != nil {
			return err
		}
		s.Datasets = ofInterest(s, names)
		p.Show(s.Datasets, time.Now())
		if done, err := settled(s, names, until, first); done {
			p.Close()
			if err == nil {
				for _, ds := range s.Datasets {
					if len(names) == 0 || slices.Contains(names, ds.Name) {
						show.Incomplete(w, "bivouac: ", ds)
					}
				}
				err = leftOut(ctx, ctl, s, names, w)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return gaveUp(ctx, s, names)
		case <-t.C:
		}
	}
}

// pathOf returns the path of a dataset below data/, or of its file if the dataset is one unmodified file.
func pathOf(ds *daemon.DatasetStatus) string {
	var spec job.Dataset
	if ds.Files != 1 || json.Unmarshal([]byte(ds.Spec), &spec) != nil || spec.Options.Unpack != stagein.UnpackNo {
		return ds.Name
	}
	if st, err := os.Stat(ds.Source); err != nil || !st.Mode().IsRegular() {
		return ds.Name
	}
	return ds.Name + "/" + filepath.Base(ds.Source)
}

// unknown returns the error for a name that no dataset has and the job does not want.
func unknown(s daemon.Status, names []string) error {
	for _, n := range names {
		if slices.Contains(s.Wanted, n) || slices.ContainsFunc(s.Datasets, func(ds daemon.DatasetStatus) bool { return ds.Name == n }) {
			continue
		}
		var all []cluster.Dataset
		for _, ds := range s.Current() {
			all = append(all, ds.Dataset)
		}
		return dataset.Unknown(n, all)
	}
	return nil
}

// ofInterest returns the datasets for which a wait waits: the latest of each name. A removed one counts only if the job
// wants it or the caller named it.
func ofInterest(s daemon.Status, names []string) (all []daemon.DatasetStatus) {
	if len(names) == 0 {
		names, all = s.Wanted, s.Current()
	}
	for _, n := range names {
		if slices.ContainsFunc(all, func(ds daemon.DatasetStatus) bool { return ds.Name == n }) {
			continue
		}
		for i, ds := range slices.Backward(s.Datasets) {
			if ds.Name == n {
				all = append(all, s.Datasets[i])
				break
			}
		}
	}
	return all
}

// gaveUp explains that the stage-in continues although the wait ended, and how to end it.
func gaveUp(ctx context.Context, s daemon.Status, names []string) error {
	why := "interrupted"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why = "timed out"
	}
	name := "NAME"
	if len(names) > 0 {
		name = names[0]
	}
	for _, ds := range ofInterest(s, names) {
		if !ds.Phase.Ended() && !ds.Ready {
			name = ds.Name
			break
		}
	}
	return fmt.Errorf("%s: no longer waiting; stage-ins continue in the background: run bivouac status to see them, or bivouac cancel %s to end one", why, name)
}

// settled reports whether nothing is left to wait for, and returns failures. A failed dataset that the job was started
// with, or that the caller named, ends the wait at once; any other failure is reported when the remaining datasets are
// ready.
func settled(s daemon.Status, names []string, until string, first int64) (bool, error) {
	at := make(map[string]daemon.DatasetStatus)
	for _, ds := range s.Datasets {
		at[ds.Name] = ds
	}
	needed := names
	if len(names) == 0 {
		needed = s.Wanted
		names = slices.Clone(s.Wanted)
		for _, ds := range s.Datasets {
			names = append(names, ds.Name)
		}
	}
	done := s.Ready
	var failed error
	for _, n := range names {
		ds, ok := at[n]
		if !ds.Phase.Ended() {
			enough := ds.Readable && until != "all"
			if first > 0 && ok {
				var err error
				if enough, err = hasFirst(&s, &ds, first); err != nil {
					return true, err
				}
			}
			done = done && ok && (ds.Ready || enough)
			continue
		}
		failed = fmt.Errorf("%s: %s", ds.Name, ds.Error)
		if slices.Contains(needed, n) {
			return true, failed
		}
	}
	return done, failed
}

// hasFirst reports whether the first n samples of the order are on the nodes.
func hasFirst(s *daemon.Status, ds *daemon.DatasetStatus, n int64) (bool, error) {
	var spec job.Dataset
	if err := json.Unmarshal([]byte(ds.Spec), &spec); err == nil && !slices.Contains([]string{stagein.OrderSeed, stagein.OrderRandom, stagein.OrderLoader, stagein.OrderList}, spec.Options.Fill.Kind) {
		return false, fmt.Errorf("--first: %s has no order of samples: stage it with order=seed:S, random:S, loader:S or list:FILE", ds.Name)
	}
	serving := int64(0)
	for _, x := range s.Nodes {
		if x.State != cluster.Down {
			serving++
		}
	}
	p := ds.Progress
	return ds.Readable && ds.Phase == cluster.Filling && p != nil && p.Shares >= serving && p.First >= n, nil
}
