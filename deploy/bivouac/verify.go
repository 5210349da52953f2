package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/show"
)

func verifyCmd() *cobra.Command {
	var w which
	var sums bool
	c := &cobra.Command{
		Use:   "verify [NAME]...",
		Short: "Read datasets again on all nodes and compare them with their checksums",
		Long: `Verify has every node read again, from its drives, what it has of the datasets
named (by default all that are sealed), and compare each file with the checksum
that was taken when it was read from the source. A file that is not what it was
is named with its node, and the exit status is 1.

With --sha256 the SHA-256 of each file goes to the standard output, as sha256sum
writes it, so that "cd $BIVOUAC_DATA/NAME && sha256sum -c" takes it; then one
dataset has to be named.`,
		Example: "  bivouac verify\n  bivouac verify imagenet --sha256 > imagenet.sha256",
		RunE: func(c *cobra.Command, names []string) error {
			if sums && len(names) != 1 {
				return errors.New("verify --sha256 takes one NAME")
			}
			ctl, err := w.ctl()
			if err != nil {
				return err
			}
			if names, err = sealedNames(c, ctl, names); err != nil {
				return err
			}
			bad := int64(0)
			for _, n := range names {
				r, err := ctl.Verify(c.Context(), daemon.VerifySpec{Name: n, SHA256: sums})
				if err != nil {
					return err
				}
				tellVerified(c.ErrOrStderr(), n, r)
				bad += r.Bad
			}
			if sums {
				if err := ctl.Sums(c.Context(), names[0], c.OutOrStdout()); err != nil {
					return err
				}
			}
			if bad > 0 {
				return fmt.Errorf("%d files are not what they were: stage their datasets in again under other names", bad)
			}
			return nil
		},
	}
	w.flags(c)
	c.Flags().BoolVar(&sums, "sha256", false, "list the SHA-256 of every file on the standard output")
	return c
}

// sealedNames is names, or those of all datasets that are sealed.
func sealedNames(c *cobra.Command, ctl *daemon.Ctl, names []string) ([]string, error) {
	if len(names) > 0 {
		return names, nil
	}
	s, err := ctl.FreshStatus(c.Context())
	if err != nil {
		return nil, err
	}
	for _, ds := range s.Datasets {
		if ds.Ready {
			names = append(names, ds.Name)
		}
	}
	return names, nil
}

func tellVerified(w io.Writer, name string, r daemon.VerifyResult) {
	for _, f := range r.BadFiles {
		fmt.Fprintf(w, "bivouac: %s: %q on %s: %s\n", name, f.Path, f.Host, f.Error)
	}
	if more := r.Bad - int64(len(r.BadFiles)); more > 0 {
		fmt.Fprintf(w, "bivouac: %s: and %d more\n", name, more)
	}
	fmt.Fprintf(w, "bivouac: %s: %d files, %s read, %d bad\n", name, r.Files, show.Bytes(r.Bytes), r.Bad)
	if r.Unsummed > 0 {
		fmt.Fprintf(w, "bivouac: %s: %d of them have no checksum to compare with\n", name, r.Unsummed)
	}
}
