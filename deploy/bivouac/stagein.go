package main

import (
	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func stageInCmd() *cobra.Command {
	var w which
	var background bool
	c := &cobra.Command{
		Use:   "stage-in SRC[:NAME]",
		Short: "Bring a tar, a zip archive or a directory in as a dataset, read by all nodes in parallel",
		Long: `Stage-in unpacks the tar or zip archive SRC, or copies the directory SRC, into
data/NAME. All nodes take part, and each byte of the source is read once. A tar
packed by gzip, zstd, xz or bzip2 is unpacked by one node alone, which is
slower. NAME is by default the last part of SRC without ".tar", ".tar.gz" or
".zip". The dataset appears whole or not at all, and is read-only. Who
interrupts the command ends the waiting, not the stage-in.`,
		Example: "  bivouac stage-in /lustre/me/imagenet.tar --dir /tmp/camp\n  bivouac stage-in /home/me/set7:validation --dir /tmp/camp",
		Args:    one("SRC[:NAME]"),
		RunE: func(c *cobra.Command, args []string) error {
			spec, err := pitch.ParseStageIn(args[0])
			if err != nil {
				return err
			}
			ctl, err := w.ctl()
			if err != nil {
				return err
			}
			r, err := ctl.StageIn(c.Context(), spec)
			if err != nil {
				return err
			}
			if background {
				return nil
			}
			return waitFor(c.Context(), ctl, "all", []string{r.Name}, c.ErrOrStderr())
		},
	}
	w.flags(c)
	c.Flags().BoolVar(&background, "background", false, `return at once; "bivouac wait" waits`)
	return c
}
