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
data/NAME. All nodes take part, and each byte of the source is read once. A tar
packed by gzip, zstd, xz or bzip2 is unpacked by one node alone, which is
slower. NAME is by default the last part of SRC without ".tar", ".tar.gz" or
".zip". The dataset is read-only. The whole tree of a directory, of large zip
archives, and of large tars of files that are not small, appears as soon as it is
known, and can be read while its files are fetched; anything else appears when
all of it is there. Who interrupts the command ends the waiting, not the
stage-in.

SRC may be a pattern with *, ? or [...] in names, or a range as {000..127}; what
it matches becomes one dataset, whole archives being dealt out to the nodes. All
numbers of a range have to be there. NAME is then by default the last directory
before the pattern. Quote a pattern, so that the shell leaves it alone.

The options behind SRC are one word with it, as in #SBATCH lines:

    unpack=no       keep archives, or whatever matches, as the files they are
    unpack=apart    put what each archive has into a directory named after it
    unpack=nested   unpack tars that are members of a tar, too: each into a
                    directory named after it
    list=FILE       only what FILE lists: paths in the dataset, one to a line (or
                    each ended by a NUL); a directory stands for all below it
    include=PATTERN only what matches, by name, or by path if it has a slash;
    exclude=PATTERN not what matches; a directory stands for all below it, which
                    is then not looked at. Both can be repeated
    limit=N         at most N files, to try something out
    spill=fail      fail if the nodes have no room for all of it. Else (spill=pfs) a
                    part, chosen by hash, stays where it is and is read through,
                    if SRC is a directory, a tar, or a large zip archive. A
                    compressed tar has to fit. What a lost node had and the others
                    have no room for is read through whatever is said here, but of
                    a compressed tar only near a restart point (a gzip member, a
                    zstd frame, an xz block)
    order=ORDER     in which files are fetched while the tree can be read already:
                    shuffled (default), source, seed:S as PyTorch's
                    DistributedSampler(seed=S) has them in epoch 0, list:FILE
    index=WHERE     keep what was found in a large tar, so that the next job's tree
                    appears at once: in the cache directory of who submits (auto,
                    default; $XDG_CACHE_HOME or ~/.cache), beside the archive
                    (beside), in a file or a directory PATH, or not at all (off).
                    One that does not fit the archive is ignored
    on-error=skip   leave out what cannot be read, instead of failing: it is
                    counted and listed (bivouac skipped), and the exit status is 3.
                    Of several members of one name the last stays, but a directory
                    before a file; a hard link to nothing is left out

A comma that is meant, in a value or before what looks like KEY=, is written
twice. With list, include or limit a directory is there if something is in it.`,
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
