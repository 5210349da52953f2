package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
)

func traceCmd() *cobra.Command {
	var w which
	var asJSON bool
	c := &cobra.Command{
		Use:   "trace",
		Short: "Show every request to the mount of this node, as it is answered",
		Long: `Trace prints a line for every request that the kernel sends to the mount of this
node: time, operation, inode, name or byte range, process, duration and result.
Stop it with Ctrl-C. Requests are not stored, and tracing costs nothing while no
trace command runs. Operations that the kernel answers from its caches or reads
directly do not appear.`,
		Example: "  bivouac trace | grep -v ' lookup '\n  bivouac trace --json > trace.json",
		Args:    cobra.NoArgs,
		RunE: w.run(func(c *cobra.Command, ctl *daemon.Ctl, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return trace(ctx, ctl, c.OutOrStdout(), c.ErrOrStderr(), asJSON)
		}),
	}
	w.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each request")
	return c
}

func trace(ctx context.Context, ctl *daemon.Ctl, out, errs io.Writer, asJSON bool) error {
	e := json.NewEncoder(out)
	return ctl.Trace(ctx, func() { fmt.Fprintln(errs, "bivouac: tracing; stop with Ctrl-C") }, func(l daemon.TraceLine) error {
		if asJSON {
			return e.Encode(l)
		}
		if l.Dropped > 0 {
			fmt.Fprintf(errs, "bivouac: %d requests not shown: the output is too slow; write it to a file\n", l.Dropped)
		}
		outcome := "ok"
		if l.Error != "" {
			outcome = l.Error
		}
		_, err := fmt.Fprintf(out, "%s %-11s %-16v %-24q pid %-7d %10v  %s\n",
			l.At.Format("15:04:05.000000"), l.Op, l.Ino, l.What, l.Pid, l.Took, outcome)
		return err
	})
}
