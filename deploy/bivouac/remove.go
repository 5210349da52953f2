package main

import (
	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
)

func cancelCmd() *cobra.Command {
	return ending("cancel", true, "End the stage-in of a dataset",
		`Cancel ends the stage-in of the dataset NAME and removes the files staged so
far from all nodes. The dataset leaves bivouac status, and commands that wait for
it fail. A dataset that is ready stays: bivouac remove removes it.`)
}

func removeCmd() *cobra.Command {
	return ending("remove", false, "Remove a dataset and free its space",
		`Remove removes the dataset NAME from all nodes, also while it is being staged, and
frees its space. The source is not touched. Its files that are still open can fail
with ESTALE. The name can be used again at once.`)
}

// ending returns a command that ends a dataset.
func ending(use string, cancel bool, short, long string) *cobra.Command {
	var w which
	c := &cobra.Command{
		Use:     use + " NAME",
		Short:   short,
		Long:    long,
		Example: "  bivouac " + use + " imagenet --dir /tmp/camp",
		Args:    one("NAME"),
		RunE: w.run(func(c *cobra.Command, ctl *daemon.Ctl, args []string) error {
			return ctl.Remove(c.Context(), daemon.RemoveRequest{Name: args[0], Cancel: cancel})
		}),
	}
	w.flags(c)
	return c
}
