package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/deploy/show"
)

func verifyCmd() *cobra.Command {
	var w which
	var sums, keep, asJSON, src bool
	c := &cobra.Command{
		Use:   "verify [NAME]...",
		Short: "Read datasets again on all nodes and compare them with their checksums",
		Long: `Verify has every node read again, from its drives, what it has of the datasets
named (by default all that are sealed), and compare each file with the checksum
that was taken when it was read from the source. A file that is not what it was
is named with its node, fetched from the source again, and compared again. If it
is right then, all is well; otherwise the exit status is 1, and the file cannot be
read until the source has it as it was. With --keep nothing is fetched.

Files for which the nodes have no room are in the source alone (spill=pfs, or a node
was lost). They are counted, and not read, unless --source is given: then they are read from
there, each once for all nodes, and compared where there is a checksum. That is
where the dataset is a compressed tar; of others only those files have one that
are on the nodes.

With --sha256 the SHA-256 of each file that is read goes to the standard output, as sha256sum
writes it, so that "cd $BIVOUAC_DATA/NAME && sha256sum -c" takes it; then one
dataset has to be named.`,
		Example: "  bivouac verify\n  bivouac verify imagenet --sha256 > imagenet.sha256",
		RunE: func(c *cobra.Command, names []string) error {
			switch {
			case sums && len(names) != 1:
				return errors.New("verify --sha256 takes one NAME")
			case sums && asJSON:
				return errors.New("verify takes --sha256 or --json, not both: each is all of the output")
			}
			ctl, err := w.ctl()
			if err != nil {
				return err
			}
			if names, err = sealedNames(c, ctl, names); err != nil {
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
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				if err := e.Encode(results); err != nil {
					return err
				}
			}
			if sums {
				if err := ctl.Sums(c.Context(), names[0], c.OutOrStdout()); err != nil {
					return err
				}
			}
			if bad > 0 {
				return fmt.Errorf("%d files are not what they were", bad)
			}
			return nil
		},
	}
	w.flags(c)
	c.Flags().BoolVar(&keep, "keep", false, "only tell: do not fetch again what is bad")
	c.Flags().BoolVar(&src, "source", false, "read from the source, too, what is there alone as the nodes have no room for it")
	c.Flags().BoolVar(&asJSON, "json", false, "print what was found as JSON")
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

func tellVerified(w io.Writer, name string, r dataset.VerifyResult) {
	for _, f := range r.BadFiles {
		if f.Repaired {
			f.Error += "; it was fetched again and is right now"
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
		fmt.Fprintf(w, "bivouac: %s: and %d more: run verify again for them\n", name, more)
	}
	fmt.Fprintf(w, "bivouac: %s: %d files, %s read, %d bad", name, r.Files, show.Bytes(r.Bytes), r.Bad)
	if r.Repaired > 0 {
		fmt.Fprintf(w, ", %d fetched again", r.Repaired)
	}
	fmt.Fprintln(w)
	if r.Unsummed > 0 {
		fmt.Fprintf(w, "bivouac: %s: %d of them have no checksum to compare with\n", name, r.Unsummed)
	}
	if r.Overflow > 0 {
		fmt.Fprintf(w, "bivouac: %s: %d files more are in the source alone and were not checked: verify --source %s reads them\n", name, r.Overflow, name)
	}
}
