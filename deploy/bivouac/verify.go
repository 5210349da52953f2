package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/deploy/show"
	"github.com/bivouacfs/bivouac/metadata"
)

func verifyCmd() *cobra.Command {
	var w which
	var sums, keep, asJSON, src bool
	c := &cobra.Command{
		Use:   "verify [NAME]...",
		Short: "Read datasets again on all nodes and compare them with their checksums",
		Long: `Verify makes every node read its files of the named datasets from its drives
(default: all datasets that are ready) and compare each file with the checksum
from staging. It names each damaged file with its node, fetches the file from
the source again and compares it again. If a file is still damaged, the exit
status is 1, and the file cannot be read until the source is restored. With
--keep, verify fetches nothing.

Files that do not fit on the nodes are only in the source (overflow=source, or a node
was lost). Verify counts them and does not read them. With --source it reads
each once and compares those that have a checksum: the files of a compressed
tar. Other sources have checksums only for files that are on the nodes.

With --sha256, verify prints the SHA-256 of each file that it reads, in the
format of sha256sum, for "cd $BIVOUAC_DATA/NAME && sha256sum -c FILE". Name one
dataset.`,
		Example: "  bivouac verify\n  bivouac verify imagenet --sha256 > imagenet.sha256",
		RunE: func(c *cobra.Command, names []string) error {
			switch {
			case sums && len(names) != 1:
				return errors.New("verify --sha256 needs exactly one NAME")
			case sums && asJSON:
				return errors.New("verify: give --sha256 or --json, not both")
			}
			ctl, err := w.ctl()
			if err != nil {
				return err
			}
			if names, err = readyNames(c, ctl, names); err != nil {
				return err
			}
			bad, results := int64(0), make(map[string]dataset.VerifyResult)
			for _, n := range names {
				r, err := ctl.Verify(c.Context(), dataset.VerifySpec{Name: n, SHA256: sums, Keep: keep, Source: src})
				if err != nil {
					return err
				}
				if results[n] = r; !asJSON {
					tellVerified(c.ErrOrStderr(), n, r)
				}
				bad += r.Bad
			}
			if asJSON {
				if err := writeJSON(c.OutOrStdout(), results); err != nil {
					return err
				}
			}
			if sums {
				if err := ctl.Sums(c.Context(), names[0], c.OutOrStdout()); err != nil {
					return err
				}
			}
			if bad > 0 {
				return fmt.Errorf("damaged and not repaired: %s: restore them in the source and run verify again", show.Count(bad, "file"))
			}
			return nil
		},
	}
	w.flags(c)
	c.Flags().BoolVar(&keep, "keep", false, "only report damaged files, do not fetch them again")
	c.Flags().BoolVar(&src, "source", false, "also read files that are only in the source")
	c.Flags().BoolVar(&asJSON, "json", false, "print the results as JSON")
	c.Flags().BoolVar(&sums, "sha256", false, "print the SHA-256 of every file")
	return c
}

// readyNames returns names, or if there are none the names of all ready datasets.
func readyNames(c *cobra.Command, ctl *daemon.Ctl, names []string) ([]string, error) {
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

func tellVerified(w io.Writer, name string, r dataset.VerifyResult) {
	for _, f := range r.BadFiles {
		switch {
		case !f.Repaired:
		case r.Replicas > 0:
			f.Error += "; repaired from another copy or the source"
		default:
			f.Error += "; repaired from the source"
		}
		if f.Path == "" {
			fmt.Fprintf(w, "bivouac: %s: on %s: %s\n", name, f.Host, f.Error)
			continue
		}
		where := "on "
		if f.Source {
			where = "read by "
		}
		fmt.Fprintf(w, "bivouac: %s: %q %s%s: %s\n", name, f.Path, where, f.Host, f.Error)
	}
	if more := r.Bad + r.Repaired - int64(len(r.BadFiles)); more > 0 {
		fmt.Fprintf(w, "bivouac: %s: and %d more: run verify again to list them\n", name, more)
	}
	fmt.Fprintf(w, "bivouac: %s: %s, %s read, %d damaged", name, show.Count(r.Files, "file"), metadata.FormatBytes(r.Bytes), r.Bad)
	if r.Repaired > 0 {
		fmt.Fprintf(w, ", %d repaired", r.Repaired)
	}
	if r.Replicas > 0 {
		fmt.Fprintf(w, ", %d replicas compared", r.Replicas)
	}
	fmt.Fprintln(w)
	if r.Unsummed > 0 {
		fmt.Fprintf(w, "bivouac: %s: %d of these files have no checksum and were only read\n", name, r.Unsummed)
	}
	if r.Overflow > 0 {
		fmt.Fprintf(w, "bivouac: %s: %d more files are only in the source and were not checked: run bivouac verify --source %s\n", name, r.Overflow, name)
	}
}
