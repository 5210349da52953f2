package main

import (
	"fmt"

	"github.com/spf13/cobra"
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
		RunE: func(c *cobra.Command, args []string) error {
			ctl, err := w.ctl()
			if err != nil {
				return err
			}
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
		},
	}
	w.flags(c)
	return c
}
