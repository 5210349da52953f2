package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/deploy/local"
	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func upCmd() *cobra.Command {
	var cfg local.Config
	var capacity, scratch, rate, serveRate, ahead, view, encrypt, auth string
	var asJSON bool
	c := &cobra.Command{
		Use:   "up --dir D",
		Short: "Start a filesystem of several nodes on this machine, without Slurm",
		Long: `Up creates the directory D if it is missing, starts a daemon for each node, mounts
the nodes at D/node0, D/node1, … and returns when all of them are ready. It needs
no Slurm and no configuration. The last line that it prints sets the variables that
job scripts use, for a shell. Stop it with: bivouac down --dir D

Only jobs under Slurm restart a daemon that has died. Here calls below its mount fail
with "Transport endpoint is not connected", and bivouac status --dir D names it.`,
		Example: "  bivouac up --nodes 4 --dir /tmp/camp",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if err = local.CheckNodes(cfg.Nodes); err != nil { // 0 in a Config means the default
				return err
			}
			for _, s := range []struct {
				flag, value string
				to          *int64
			}{{"capacity", capacity, &cfg.Capacity}, {"rate", rate, &cfg.Rate}, {"serve-rate", serveRate, &cfg.ServeRate}} {
				if *s.to, err = pitch.ParseSize(s.value); err != nil {
					return fmt.Errorf("--%s: %w", s.flag, err)
				}
			}
			if cfg.Scratch, err = job.ParseReserve(scratch, pitch.ParseSize); err != nil {
				return fmt.Errorf("--scratch %s: %w", scratch, err)
			}
			if cfg.Ahead, err = job.ParseAhead(ahead, pitch.ParseSize); err != nil {
				return fmt.Errorf("--ahead %s: %w", ahead, err)
			}
			if err = job.CheckFailureTimeout(cfg.FailureTimeout); err != nil {
				return fmt.Errorf("--failure-timeout %v: %w", cfg.FailureTimeout, err)
			}
			if cfg.KernelView, err = job.ParseKernelView(view); err != nil {
				return fmt.Errorf("--kernel-view %s: %w", view, err)
			}
			if cfg.Protect, err = secure.Parse(encrypt, auth); err != nil {
				return fmt.Errorf("--%w", err)
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
			fmt.Fprintf(c.OutOrStdout(), "export BIVOUAC_DATA=%s BIVOUAC_SCRATCH=%s\n", filepath.Join(s.Nodes[0].Mount, "data"), filepath.Join(s.Nodes[0].Mount, "scratch"))
			return nil
		},
	}
	c.Flags().StringVar(&cfg.Dir, "dir", "", "directory for the filesystem; created if missing (required)")
	c.Flags().IntVar(&cfg.Nodes, "nodes", 4, "number of nodes")
	c.Flags().StringVar(&capacity, "capacity", "", "space for each node, such as 40G (default: the free space of the disk, for each)")
	c.Flags().StringVar(&scratch, "scratch", "", "space on each node that datasets leave to scratch, such as 40G or 20% (default: 10%, at most 64G)")
	c.Flags().StringVar(&rate, "rate", "", "limit on each node's reads from sources, in bytes per second, such as 200M (default: none)")
	c.Flags().StringVar(&serveRate, "serve-rate", "", "limit on the data that each node sends to readers on other nodes, in bytes per second (default: none)")
	c.Flags().StringVar(&ahead, "ahead", "", "memory on each node for prefetched files, for each dataset with an access plan; 0: no prefetch (default: a share of the memory)")
	c.Flags().BoolVar(&cfg.VerifyReads, "verify-reads", false, "compare each piece of a dataset with its checksum before its first read")
	c.Flags().StringVar(&view, "kernel-view", "auto", "auto or off: let the kernel read small local files directly, where it can")
	c.Flags().StringVar(&encrypt, "encrypt", "", "tls: encrypt and authenticate what daemons send each other (default: off)")
	c.Flags().StringVar(&auth, "auth", "", "frames: authenticate what daemons send each other, without encryption (default: off)")
	c.Flags().BoolVar(&cfg.Debug, "debug", false, "log every request of the mounts")
	c.Flags().Uint64Var(&cfg.Seed, "seed", 0, "seed for placing files on nodes")
	timeVar(c.Flags(), &cfg.Timeout, "timeout", time.Minute, "time limit until all nodes are ready")
	timeVar(c.Flags(), &cfg.FailureTimeout, "failure-timeout", job.DefaultFailureTimeout, "a node that is silent for this long is declared lost; 2s to 45s")
	c.Flags().BoolVar(&asJSON, "json", false, "print the nodes as JSON")
	must(c.MarkFlagRequired("dir"))
	return c
}

// must panics on errors that only a bug in this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
