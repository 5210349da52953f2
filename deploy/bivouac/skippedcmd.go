package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
)

func skippedCmd() *cobra.Command {
	var w which
	c := &cobra.Command{
		Use:   "skipped NAME",
		Short: "List the entries that a dataset lacks because they could not be read (on-error=skip)",
		Long: `Skipped prints a line for each entry that the dataset NAME lacks because it could
not be read: its path in the source, quoted, and the reason. It prints nothing
if the dataset is complete.`,
		Example: "  bivouac skipped imagenet --dir /tmp/camp",
		Args:    one("NAME"),
		RunE: w.run(func(c *cobra.Command, ctl *daemon.Ctl, args []string) error {
			all, err := ctl.Skips(c.Context(), args[0])
			if err != nil {
				return err
			}
			for _, s := range all {
				if _, err := fmt.Fprintf(c.OutOrStdout(), "%q: %s\n", s.Path, s.Error); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	w.flags(c)
	return c
}
