package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func prologCmd() *cobra.Command {
	return scriptCmd("prolog", "Pitch a job's filesystem on this node (run by Slurm, as root)",
		`Prolog is run on every node of a job by the plugin, or by a Prolog= line of
slurm.conf. It takes the job from Slurm's environment. Its status is 0 unless
this node is sick (75: Slurm drains it); a failure that is the job's own is
told to the job.`, pitch.Prolog)
}

func epilogCmd() *cobra.Command {
	return scriptCmd("epilog", "Stage out, unmount and remove a job's filesystem on this node (run by Slurm, as root)",
		`Epilog is run on every node of a job by the plugin, or by an Epilog= line of
slurm.conf. It may be run again, and for a job that has no filesystem.`, pitch.Epilog)
}

// scriptCmd makes a command of one of Slurm's scripts.
func scriptCmd(use, short, long string, run func(context.Context, pitch.Env, pitch.Site) int) *cobra.Command {
	var config string
	c := &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			site, err := pitch.LoadSite(config)
			if err != nil {
				// A slip in a file that is the same everywhere must not drain
				// the cluster: the job finds no bivouac and says so itself.
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
	c.Flags().StringVar(&config, "config", pitch.SitePath, "the site's configuration")
	return c
}
