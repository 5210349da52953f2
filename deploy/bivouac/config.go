package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func configCmd() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check or show the configuration of the site"}
	c.AddCommand(configOf("check", "Check a configuration file", false), configOf("show", "Show all keys with their values, defaults included", true))
	return c
}

// configOf returns a command that reads the configuration.
func configOf(use, short string, show bool) *cobra.Command {
	return &cobra.Command{
		Use:     use + " [FILE]",
		Short:   short,
		Long:    short + ". FILE is by default " + pitch.SitePath + ".",
		Example: "  bivouac config " + use,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			path := append(args, pitch.SitePath)[0]
			_, err := os.Stat(path)
			missing := err != nil
			if missing && len(args) > 0 {
				return err
			}
			site, err := pitch.LoadSite(path)
			if err != nil {
				return err
			}
			if !show {
				text := path + ": valid"
				if missing {
					text = path + " is missing: the defaults are used"
				}
				_, err = fmt.Fprintln(c.OutOrStdout(), text)
				return err
			}
			e := yaml.NewEncoder(c.OutOrStdout())
			if err := e.Encode(site); err != nil {
				return err
			}
			return e.Close()
		},
	}
}
