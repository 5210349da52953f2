package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func prologCmd() *cobra.Command {
	return scriptCmd("prolog", "Start a job's filesystem on this node (run by Slurm, as root)",
		`The plugin, or a Prolog= line in slurm.conf, runs prolog on every node of a job.
It reads the job from Slurm's environment. The exit status is 75, on which Slurm
drains the node, only if the node itself is faulty. Otherwise it is 0, and an
error is reported in the output of the job.`, pitch.Prolog)
}

func epilogCmd() *cobra.Command {
	return scriptCmd("epilog", "Stage out, unmount and remove a job's filesystem on this node (run by Slurm, as root)",
		`The plugin, or an Epilog= line in slurm.conf, runs epilog on every node of a job.
It can be repeated, and does nothing for a job without a filesystem.`, pitch.Epilog)
}

// scriptCmd returns a command that runs as one of Slurm's scripts.
func scriptCmd(use, short, long string, run func(context.Context, pitch.Env, pitch.Site) int) *cobra.Command {
	var config string
	c := &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			site, err := pitch.LoadSite(config)
			if err != nil {
				// A mistake in a file that is the same everywhere must not drain the cluster: the job reports itself
				// that it has no bivouac.
				fmt.Fprintln(c.ErrOrStderr(), "bivouac:", err)
				if use == "prolog" {
					return nil
				}
			}
			if status := run(c.Context(), pitch.Env{}, site); status != 0 {
				return &exitError{status: status}
			}
			return nil
		},
	}
	c.Flags().StringVar(&config, "config", pitch.SitePath, "path of the site configuration")
	return c
}
