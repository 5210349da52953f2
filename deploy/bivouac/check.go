package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/show"
)

func checkCmd() *cobra.Command {
	var w which
	var asJSON bool
	c := &cobra.Command{
		Use:   "check",
		Short: "Check the consistency of scratch over all nodes",
		Long: `Check compares the metadata and data of scratch on all nodes: every name has an
inode and every inode a name, link counts and parents are correct, no
transaction is unfinished, and no node keeps data of a deleted file. It changes
nothing. The job can go on meanwhile: entries that change during the check are
checked again.

It lists each problem. The exit status is 1 if there is a problem or a node is
down. The node that runs the check needs about 500 bytes of memory per file.`,
		Example: "  bivouac check\n  bivouac check --json",
		Args:    cobra.NoArgs,
		RunE: w.run(func(c *cobra.Command, ctl *daemon.Ctl, _ []string) error {
			r, err := ctl.Check(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(c.OutOrStdout(), r)
			} else {
				err = show.Check(c.OutOrStdout(), r)
			}
			if err == nil && r.Wrong > 0 {
				err = fmt.Errorf("scratch has %d problems, listed above: copy out the files that you need and start a new job", r.Wrong)
			}
			return err
		}),
	}
	w.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
