package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/deploy/show"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

func waitCmd() *cobra.Command {
	var w which
	var until string
	var timeout time.Duration
	var output bool
	c := &cobra.Command{
		Use:   "wait [NAME]...",
		Short: "Wait until the datasets can be read on all nodes",
		Long: `Wait returns when the datasets that were asked for can be read on all nodes:
"manifest" when their whole tree appears, and what is read is fetched first if
it is not there yet; "all" when all their data is there; "none" at once. An
archive that has to be read to be known appears when all of it is there. With
names it waits for those alone. It shows progress, and fails if a stage-in has
failed.`,
		RunE: func(c *cobra.Command, names []string) error {
			if !slices.Contains([]string{"", "manifest", "all", "none"}, until) {
				return fmt.Errorf("--for %s: manifest, all or none", until)
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
			return waitFor(ctx, ctl, until, names, c.ErrOrStderr())
		},
	}
	w.flags(c)
	c.Flags().StringVar(&until, "for", "", "manifest, all or none (default: what the job's wait= option says)")
	c.Flags().DurationVar(&timeout, "timeout", 0, "give up after this time (default: never)")
	c.Flags().BoolVar(&output, "job-output", false, "standard error, or output, is the job's")
	must(c.Flags().MarkHidden("job-output")) // for the plugin
	return c
}

// noteOutput tells the daemon where the job's output goes, if that is a file. It
// is not worth failing the job: a daemon that cannot be asked fails the wait.
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

// waitFor waits for the datasets named (none: all that the job wants or has).
func waitFor(ctx context.Context, ctl *daemon.Ctl, until string, names []string, w io.Writer) error {
	p := &show.Progress{W: w, Terminal: terminal(w)}
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for ask := ctl.FreshStatus; ; ask = ctl.Status {
		s, err := ask(ctx)
		if ctx.Err() != nil {
			return gaveUp(ctx)
		}
		if err != nil {
			return err
		}
		if until == "" {
			until = s.Wait
		}
		if until == "none" {
			return nil
		}
		for _, ds := range s.Datasets {
			if len(names) == 0 || slices.Contains(names, ds.Name) {
				p.Show(ds, time.Now())
			}
		}
		if done, err := settled(s, names, until); done {
			if err == nil {
				err = leftOut(ctx, ctl, s, names, w)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return gaveUp(ctx)
		case <-t.C:
		}
	}
}

// gaveUp says that the stage-in continues although the wait ended.
func gaveUp(ctx context.Context) error {
	why := "interrupted"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why = "the time to wait is over"
	}
	return fmt.Errorf("%s; the staging goes on: see bivouac status", why)
}

// settled reports whether there is nothing left to wait for, and what failed. A failure of a
// dataset that the job was started with, or that the caller named, ends the wait at once; any
// other failure is reported when the remaining datasets are ready.
func settled(s daemon.Status, names []string, until string) (bool, error) {
	at := make(map[string]daemon.DatasetStatus)
	for _, ds := range s.Datasets {
		at[ds.Name] = ds // a later one of the name counts
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
		if !ok || ds.Phase != cluster.Failed {
			done = done && ok && (ds.Ready || ds.Readable && until != "all")
			continue
		}
		failed = fmt.Errorf("%s: %s", ds.Name, ds.Error)
		if slices.Contains(needed, n) {
			return true, failed
		}
	}
	return done, failed
}
