package main

import (
	"context"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/pitch"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

var stageInHelp = `Stage-in unpacks the tar or zip archive SRC, or copies the directory SRC, into
data/NAME. All nodes take part, and each byte of the source is read once. One
node unpacks a compressed tar, which is slower. The default NAME is the last
part of SRC without its ending, such as ".tar", ".tar.gz" or ".h5". A dataset is
always a directory: a single file that unpack=no keeps, such as train.h5, becomes
data/train/train.h5.

The dataset is read-only. The tree of a directory, a large zip or a tar of large
files is readable while its files are still being fetched. Any other dataset
appears when it is complete. The command waits until the dataset is ready. Ctrl-C
ends the wait, not the stage-in: "bivouac cancel NAME" ends that.

SRC can be a pattern with *, ? or [...] in names, or a range such as {000..127}.
All matches become one dataset. Every number of a range has to exist. The default
NAME is then the last directory before the pattern. Quote a pattern in a shell.

Options follow SRC, separated by commas, as in #SBATCH lines:

` + keysHelp(stagein.Keys) + `
With order=seed:S files arrive as PyTorch's DistributedSampler with seed=S reads
them, with random:S as RandomSampler with a generator seeded with S does, with
loader:S as DataLoader with shuffle=True and such a generator does, and with
list:FILE in the order of the paths in FILE.

Write a comma inside a value twice.`

func stageInCmd() *cobra.Command {
	var w which
	var background, replace bool
	c := &cobra.Command{
		Use:   "stage-in SRC[:NAME][,KEY=VALUE]...",
		Short: "Stage archives or a directory as a dataset, read by all nodes in parallel",
		Long:  stageInHelp,
		Example: "  bivouac stage-in /lustre/me/imagenet.tar --dir /tmp/camp\n  bivouac stage-in /home/me/set7:validation --dir /tmp/camp\n" +
			"  bivouac stage-in '/lustre/me/wds/train-{0000..0146}.tar:train,unpack=no' --dir /tmp/camp\n" +
			"  bivouac stage-in /lustre/me/set,list=split.txt,exclude=*.json --dir /tmp/camp",
		Args: one("SRC[:NAME][,KEY=VALUE]..."),
		RunE: func(c *cobra.Command, args []string) error {
			spec, err := pitch.ParseStageIn(args[0])
			if err != nil {
				return err
			}
			ctl, err := w.ctl()
			if err != nil {
				return err
			}
			return stageIn(c.Context(), ctl, spec, replace, background, c.ErrOrStderr())
		},
	}
	w.flags(c)
	c.Flags().BoolVar(&replace, "replace", false, "remove the dataset of the same name first, if there is one")
	c.Flags().BoolVar(&background, "background", false, `return at once; use "bivouac wait" to wait`)
	return c
}

// stageIn stages a dataset in and waits for it, unless background is set. It removes a failure that it has reported, so
// that no later wait or status repeats it.
func stageIn(ctx context.Context, ctl *daemon.Ctl, spec job.Dataset, replace, background bool, w io.Writer) error {
	if replace {
		s, err := ctl.FreshStatus(ctx)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(s.Current(), func(ds daemon.DatasetStatus) bool { return ds.Name == spec.Name }) {
			if err := ctl.Remove(ctx, daemon.RemoveRequest{Name: spec.Name}); err != nil {
				return err
			}
		}
	}
	r, err := ctl.StageIn(ctx, spec)
	if err != nil || background {
		return err
	}
	err = waitFor(ctx, ctl, "all", 0, []string{r.Name}, w)
	if s, e := ctl.Status(ctx); err != nil && e == nil {
		for _, ds := range s.Current() {
			if ds.ID == r.Dataset && ds.Phase == cluster.Failed {
				_ = ctl.Remove(ctx, daemon.RemoveRequest{Name: r.Name}) // otherwise status keeps showing it
			}
		}
	}
	return err
}
