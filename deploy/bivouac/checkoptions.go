package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func checkOptionsCmd() *cobra.Command {
	var in, out []string
	var opts, config string
	c := &cobra.Command{
		Use:   "check-options",
		Short: "Check the --bivouac options of a submission (run by the plugin, as the user)",
		Long: `Check-options checks the options and prints them encoded for the nodes, or
prints what is wrong with them. If munge is not used, a second line has the
job key.`,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			site, err := pitch.LoadSite(config)
			if err != nil {
				return err
			}
			spec, err := pitch.CheckOptions(in, out, opts, nil)
			if err != nil {
				return err
			}
			text, err := spec.Encode()
			if err != nil {
				return err
			}
			key, err := pitch.SubmissionKey(site)
			if err != nil {
				return err
			}
			if key != "" {
				text += "\n" + key
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), text)
			return err
		},
	}
	c.Flags().StringArrayVar(&in, "stage-in", nil, "SRC[:NAME][,KEY=VALUE]...; repeatable")
	c.Flags().StringArrayVar(&out, "stage-out", nil, "FROM:TO; repeatable")
	c.Flags().StringVar(&opts, "opts", "", "KEY=VALUE,…")
	c.Flags().StringVar(&config, "config", pitch.SitePath, "path of the site configuration")
	return c
}
