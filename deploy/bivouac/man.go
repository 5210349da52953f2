package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func manCmd() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:    "man",
		Short:  "Write the man pages",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			c.Root().DisableAutoGenTag = true
			c.Root().Long += "\n\n" + optsHelp() // --help prints it at the end
			if completion, _, err := c.Root().Find([]string{"completion"}); err == nil {
				c.Root().RemoveCommand(completion) // packages have the completions
			}
			return doc.GenManTree(c.Root(), &doc.GenManHeader{Title: "BIVOUAC", Section: "1", Source: "Bivouac"}, dir)
		},
	}
	c.Flags().StringVar(&dir, "dir", "build/man", "directory to write to")
	return c
}
