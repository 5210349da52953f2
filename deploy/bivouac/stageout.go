package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/pitch"
	"github.com/bivouacfs/bivouac/deploy/show"
	"github.com/bivouacfs/bivouac/metadata"
)

func stageOutCmd() *cobra.Command {
	var w which
	c := &cobra.Command{
		Use:   "stage-out FROM:TO",
		Short: "Copy a directory of scratch to another filesystem, by all nodes in parallel",
		Long: `Stage-out copies scratch/FROM to the directory TO. All nodes take part. Each file
is written under a temporary name and renamed when it is complete.`,
		Example: "  bivouac stage-out ckpt:/lustre/me/run7 --dir /tmp/camp",
		Args:    one("FROM:TO"),
		RunE: func(c *cobra.Command, args []string) error {
			o, err := pitch.ParseStageOut(args[0])
			if err != nil {
				return err
			}
			to := o.To
			ctl, err := w.ctl()
			if err != nil {
				return err
			}
			r, err := ctl.StageOut(c.Context(), o)
			if c.Context().Err() != nil {
				return fmt.Errorf("stage-out to %s: interrupted: files already copied stay; run the same command again to resume", to)
			}
			if err != nil {
				return err
			}
			for _, e := range r.Errors {
				fmt.Fprintln(c.ErrOrStderr(), "bivouac: not copied:", e)
			}
			if more := r.Failed - int64(len(r.Errors)); more > 0 {
				fmt.Fprintf(c.ErrOrStderr(), "bivouac: and %d more\n", more)
			}
			if r.Failed > 0 {
				return fmt.Errorf("stage-out to %s: %d of %d files not copied: fix the errors listed above and run it again; files already copied stay", to, r.Failed, r.All())
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s, %s\n", show.Count(r.Files, "file"), metadata.FormatBytes(r.Bytes))
			return err
		},
	}
	w.flags(c)
	return c
}
