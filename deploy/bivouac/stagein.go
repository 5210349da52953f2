package main

import (
	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func stageInCmd() *cobra.Command {
	var w which
	var background bool
	c := &cobra.Command{
		Use:   "stage-in SRC[:NAME][,KEY=VALUE]...",
		Short: "Bring archives or a directory in as a dataset, read by all nodes in parallel",
		Long: `Stage-in unpacks the tar or zip archive SRC, or copies the directory SRC, into
data/NAME. All nodes take part, and each byte of the source is read once; a
compressed tar is unpacked by one node, which is slower. NAME is by default the
last part of SRC without ".tar", ".tar.gz" or ".zip". The dataset is read-only.
The tree of a directory, of a large zip, and of a tar of large files can be read
while its files are still fetched; anything else appears when all of it is
there. Ctrl-C ends the waiting, not the stage-in.

SRC may be a pattern with *, ? or [...] in names, or a range such as {000..127}:
all that matches becomes one dataset. Every number of a range has to exist. NAME
is then the last directory before the pattern. Quote a pattern in a shell.

Options follow SRC, separated by commas, as in #SBATCH lines:

    unpack=no       keep archives as the files that they are
    unpack=apart    unpack each archive into a directory named after it
    unpack=nested   also unpack tars inside a tar, each into a directory named
                    after it
    list=FILE       only the paths in FILE, one to a line (or separated by NUL); a
                    directory stands for everything below it
    include=PATTERN only what matches, by name, or by path if it has a slash
    exclude=PATTERN nothing that matches, or is below it. Both can be repeated
    limit=N         at most N files, for a try
    spill=fail      fail if it does not fit. The default, spill=pfs, leaves the
                    overflow, chosen by hash, in the source and reads it from there
                    (a directory, a tar, a large zip; a compressed tar has to fit)
    order=ORDER     in which files are fetched: shuffled (default), source, seed:S
                    (as PyTorch's DistributedSampler with seed=S reads them first),
                    or list:FILE
    index=WHERE     where the index of a large tar is kept, so that the next job's
                    tree appears at once: auto (default: your cache directory),
                    beside (the archive), a PATH, or off. One that does not fit the
                    archive is ignored
    on-error=skip   leave out what cannot be read; "bivouac skipped" lists it, and
                    the exit status is 3. Of members of one name the last one stays

Write a comma inside a value twice.`,
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
			r, err := ctl.StageIn(c.Context(), spec)
			if err != nil {
				return err
			}
			if background {
				return nil
			}
			return waitFor(c.Context(), ctl, "all", []string{r.Name}, c.ErrOrStderr())
		},
	}
	w.flags(c)
	c.Flags().BoolVar(&background, "background", false, `return at once; "bivouac wait" waits`)
	return c
}
