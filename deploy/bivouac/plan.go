package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/show"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

func planCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "plan",
		Short: "Set the order in which training reads a dataset, for prefetch",
		Long: `A plan says which files of a dataset each rank reads, in which order, in every
epoch. Bivouac prefetches the next files of each rank into its node's page cache.
A plan that the script does not follow costs nothing but the prefetch: "bivouac
plan show" and "bivouac status" then say why.

The order= of a stage-in sets a plan, too; so does bivouac.torch.DistributedSampler.`,
	}
	c.AddCommand(planSetCmd(), planShowCmd(), planClearCmd())
	return c
}

func planSetCmd() *cobra.Command {
	var w which
	var list string
	c := &cobra.Command{
		Use:   "set DATASET {seed:S | random:S | loader:S | chunk:S | --list FILE}",
		Short: "Set the plan of a dataset",
		Long: `Set gives the dataset a plan, in place of the one that it has:

  seed:S     torch's DistributedSampler(seed=S) with set_epoch in each epoch
  random:S   torch's RandomSampler with a generator that was seeded with S once
  loader:S   DataLoader(shuffle=True, generator=...), seeded with S once
  chunk:S    bivouac.torch.ChunkShuffleSampler(seed=S) with set_epoch in each epoch
  --list F   the paths in the dataset that F names, a line each, in every epoch; a path may be a range, PATH:OFFSET+LENGTH

After a seed, with commas: ranks=R (default: learned from the reads), epochs=E,
root=DIR (ImageFolder's directory in the dataset; default: the dataset, or train/
in it), drop_last; after chunk:S also chunk=N and group=N, the sampler's arguments
(default: 64).`,
		Example: "  bivouac plan set imagenet seed:0,ranks=16,root=train\n  bivouac plan set shards --list order.txt",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := planOf(args, list)
			if err != nil {
				return err
			}
			ctl, err := w.ctl()
			if err != nil {
				return err
			}
			digest, err := ctl.SetPlan(c.Context(), p)
			if err == nil {
				_, err = fmt.Fprintf(c.OutOrStdout(), "plan of %s set, digest %s\n", p.Dataset, digest)
			}
			return err
		},
	}
	w.flags(c)
	c.Flags().StringVar(&list, "list", "", "read the order from `FILE`: a path in the dataset on each line")
	return c
}

// planOf returns the plan that the arguments of "plan set" describe.
func planOf(args []string, list string) (accessplan.Plan, error) {
	switch {
	case list != "" && len(args) == 2:
		return accessplan.Plan{}, fmt.Errorf("both %q and --list: give one order", args[1])
	case list == "" && len(args) == 1:
		return accessplan.Plan{}, fmt.Errorf("no order given: add seed:S, random:S, loader:S, chunk:S or --list FILE")
	case list == "":
		p, err := accessplan.Parse(args[1])
		p.Dataset = args[0]
		return p, err
	}
	paths, err := lines(list)
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("%s: it names no file: give a path in the dataset on each line", list)
	}
	return accessplan.Plan{Dataset: args[0], Kind: accessplan.List, Paths: paths}, err
}

// lines returns the non-empty lines of a file.
func lines(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // read only
	var all []string
	s := bufio.NewScanner(f)
	for s.Scan() {
		if line := strings.TrimSpace(s.Text()); line != "" {
			all = append(all, line)
		}
	}
	return all, s.Err()
}

func planShowCmd() *cobra.Command {
	var w which
	var asJSON bool
	c := &cobra.Command{
		Use:     "show DATASET",
		Short:   "Print the plan of a dataset and how it is followed",
		Example: "  bivouac plan show imagenet --json",
		Args:    one("DATASET"),
		RunE: w.run(func(c *cobra.Command, ctl *daemon.Ctl, args []string) error {
			r, err := ctl.Plan(c.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(c.OutOrStdout(), r)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s: plan %v, digest %s\n", args[0], r.Plan, r.State.Digest)
			if err == nil {
				err = show.Plan(c.OutOrStdout(), r.State)
			}
			return err
		}),
	}
	w.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func planClearCmd() *cobra.Command {
	var w which
	c := &cobra.Command{
		Use:     "clear DATASET",
		Short:   "Remove the plan of a dataset: nothing is prefetched any more",
		Example: "  bivouac plan clear imagenet",
		Args:    one("DATASET"),
		RunE: w.run(func(c *cobra.Command, ctl *daemon.Ctl, args []string) error {
			return ctl.ClearPlan(c.Context(), args[0])
		}),
	}
	w.flags(c)
	return c
}
