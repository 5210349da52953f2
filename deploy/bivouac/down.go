package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/local"
)

func downCmd() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "down --dir D",
		Short: "Stop the filesystem that up started in D, and remove its data",
		Long: `Down stops the filesystem that "bivouac up" started in D and removes all its data,
also scratch: copy files that you want to keep first. It removes D if up created
it; your own files in D stay. It can be repeated, and cleans up after processes
that were killed. It fails if nothing is up in D, and names processes that still use
a mount: their files are gone.`,
		Example: "  bivouac down --dir /tmp/camp",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			users, err := local.Down(dir)
			for _, u := range users {
				fmt.Fprintf(c.ErrOrStderr(), "bivouac: %s was using the mount: its files there were removed\n", u)
			}
			return err
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "directory given to \"bivouac up\" (required)")
	must(c.MarkFlagRequired("dir"))
	return c
}
