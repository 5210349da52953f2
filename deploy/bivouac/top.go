package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/show"
)

func topCmd() *cobra.Command {
	var w which
	var every time.Duration
	c := &cobra.Command{
		Use:   "top",
		Short: "Show nodes, rates and datasets of a job, live",
		Long: `Top shows each node with its room, what it reads per second (from its own drives,
from other nodes and from the source) and what it writes; and datasets and stage-outs
with their progress. It repeats that until Ctrl-C. Without a terminal it prints the
present state once. "bivouac status" has totals and problems.`,
		Example: "  bivouac top --dir /tmp/camp",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return fmt.Errorf("--every %v: want 100ms or more", every)
			}
			ctl, err := w.ctl()
			if err != nil {
				return err
			}
			if !terminal(c.OutOrStdout()) {
				s, err := ctl.Status(c.Context())
				if err != nil {
					return err
				}
				return show.Top(c.OutOrStdout(), s)
			}
			return live(c.Context(), ctl, every, c.OutOrStdout())
		},
	}
	w.flags(c)
	timeVar(c.Flags(), &every, "every", time.Second, "time between updates")
	return c
}

// Terminal sequences: enter the alternate screen and hide the cursor, and back; the first line; clear to the end of the
// line and of the screen.
const (
	enter, leave     = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	home             = "\x1b[H"
	lineEnd, restEnd = "\x1b[K\n", "\x1b[J"
)

// live redraws a picture on a terminal until ctx ends.
func live(ctx context.Context, ctl *daemon.Ctl, every time.Duration, w io.Writer) error {
	fmt.Fprint(w, enter)
	defer fmt.Fprint(w, leave)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		s, err := ctl.Status(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := show.Top(&b, s); err != nil {
			return err
		}
		fmt.Fprintf(&b, "\n%s  every %v, Ctrl-C ends", time.Now().Format(time.TimeOnly), every)
		if _, err := io.WriteString(w, home+strings.ReplaceAll(b.String(), "\n", lineEnd)+lineEnd+restEnd); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}
