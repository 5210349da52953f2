package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/show"
)

func checkCmd() *cobra.Command {
	var w which
	var asJSON bool
	c := &cobra.Command{
		Use:   "check",
		Short: "Check that scratch is whole, over all nodes",
		Long: `Check compares what all nodes have of scratch: every name has its inode and every
inode its names, link counts and parents are true, no transaction is without an
end, and no node keeps data of a file that is gone. It changes nothing, and the
job goes on meanwhile: what others are just changing is looked at again.

What is wrong is listed, and the exit status is 1. It is also 1 if a node is
down. The node that is asked needs some 500 bytes of memory for each file.`,
		Example: "  bivouac check\n  bivouac check --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctl, err := w.ctl()
			if err != nil {
				return err
			}
			r, err := ctl.Check(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				err = e.Encode(r)
			} else {
				err = show.Check(c.OutOrStdout(), r)
			}
			if err == nil && r.Wrong > 0 {
				err = fmt.Errorf("%d things are wrong with scratch: copy out what you need and start the job anew", r.Wrong)
			}
			return err
		},
	}
	w.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
