package main

import (
	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/local"
)

func downCmd() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "down --dir D",
		Short: "End the filesystem that up has pitched in D, and remove all of it",
		Long: `Down ends the filesystem that "bivouac up" has pitched in D and removes all that
was in it. It may be called again, and after every process was killed.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return local.Down(dir) },
	}
	c.Flags().StringVar(&dir, "dir", "", "directory of the job (required)")
	must(c.MarkFlagRequired("dir"))
	return c
}
