package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/show"
)

// statusSkipped is the exit status when datasets are ready but incomplete, because something could not be read.
const statusSkipped = 3

// mostSkips is how many skipped entries are named.
const mostSkips = 20

// leftOut prints what the datasets in names lack (no names: all datasets), and returns an error with statusSkipped if
// anything is missing.
func leftOut(ctx context.Context, ctl *daemon.Ctl, s daemon.Status, names []string, w io.Writer) error {
	sum := int64(0)
	for _, ds := range s.Datasets {
		if !ds.Ready || len(names) > 0 && !slices.Contains(names, ds.Name) {
			continue
		}
		sum += ds.Missing
		for i := range ds.Unreadable {
			fmt.Fprintf(w, "bivouac: %s: on %s: %v\n", ds.Name, ds.Unreadable[i].Host, &ds.Unreadable[i].Unreadable)
		}
		if ds.Skipped == 0 {
			continue
		}
		sum += ds.Skipped
		skips, err := ctl.Skips(ctx, ds.Name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "bivouac: %s: %s left out (on-error=skip):\n", ds.Name, show.Entries(ds.Skipped))
		for _, sk := range skips[:min(len(skips), mostSkips)] {
			fmt.Fprintf(w, "bivouac:   %q: %s\n", sk.Path, sk.Error)
		}
		if more := len(skips) - mostSkips; more > 0 {
			fmt.Fprintf(w, "bivouac:   and %d more: run bivouac skipped %s\n", more, ds.Name)
		}
	}
	if sum == 0 {
		return nil
	}
	return &exitError{status: statusSkipped, err: fmt.Errorf("%s could not be read from the source, and the dataset lacks them", show.Entries(sum))}
}
