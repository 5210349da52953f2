package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/local"
	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func upCmd() *cobra.Command {
	var cfg local.Config
	var capacity, rate, serveRate, view string
	var asJSON bool
	c := &cobra.Command{
		Use:   "up --dir D",
		Short: "Pitch a filesystem of several nodes on this machine, without Slurm",
		Long: `Up starts several daemons on this machine, mounts them at D/node0, D/node1, …
and returns when all of them can be used. It needs no server, no Slurm and no
configuration. End it with: bivouac down --dir D`,
		Example: "  bivouac up --nodes 4 --dir /tmp/camp",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if cfg.Nodes < 1 { // 0 in a Config is the default
				return fmt.Errorf("--nodes %d: 1 to 64 on one machine", cfg.Nodes)
			}
			for _, s := range []struct {
				flag, value string
				to          *int64
			}{{"capacity", capacity, &cfg.Capacity}, {"rate", rate, &cfg.Rate}, {"serve-rate", serveRate, &cfg.ServeRate}} {
				if *s.to, err = pitch.ParseSize(s.value); err != nil {
					return fmt.Errorf("--%s: %w", s.flag, err)
				}
			}
			if cfg.KernelView, err = job.ParseKernelView(view); err != nil {
				return fmt.Errorf("--kernel-view %s: %w", view, err)
			}
			s, err := local.Up(c.Context(), cfg)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.OutOrStdout()).Encode(s)
			}
			for _, n := range s.Nodes {
				fmt.Fprintf(c.OutOrStdout(), "%s\t%s\n", n.Host, n.Mount)
			}
			fmt.Fprintf(c.OutOrStdout(), "data in %s, scratch in %s\n", filepath.Join(s.Nodes[0].Mount, "data"), filepath.Join(s.Nodes[0].Mount, "scratch"))
			return nil
		},
	}
	c.Flags().StringVar(&cfg.Dir, "dir", "", "directory of the job (required)")
	c.Flags().IntVar(&cfg.Nodes, "nodes", 4, "number of nodes")
	c.Flags().StringVar(&capacity, "capacity", "", "space on each node, such as 40G (default: what the disk has, for each)")
	c.Flags().StringVar(&rate, "rate", "", "most bytes a second that each node reads from sources, such as 200M (default: no bound)")
	c.Flags().StringVar(&serveRate, "serve-rate", "", "most bytes a second that each node sends others of what they read (default: no bound)")
	c.Flags().BoolVar(&cfg.VerifyReads, "verify-reads", false, "compare what is read of datasets on other nodes with what was staged")
	c.Flags().StringVar(&view, "kernel-view", "auto", "auto or off: whether the kernel reads small files that are on the node by itself, where it can")
	c.Flags().BoolVar(&cfg.Debug, "debug", false, "log a line for every request of the mounts")
	c.Flags().Uint64Var(&cfg.Seed, "seed", 0, "seed of the placement of files")
	c.Flags().DurationVar(&cfg.Timeout, "timeout", time.Minute, "longest time to come up")
	c.Flags().BoolVar(&asJSON, "json", false, "print the nodes as JSON")
	must(c.MarkFlagRequired("dir"))
	return c
}

// must is for what can only fail by a mistake in this program.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
