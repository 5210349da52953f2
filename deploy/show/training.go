package show

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/training"
	"github.com/bivouacfs/bivouac/metadata"
)

// plan writes which plan a dataset has, and the progress through it.
func plan(w io.Writer, ds daemon.DatasetStatus) error {
	t := ds.Training
	if t == nil || t.Plan == nil || t.State == nil {
		return nil
	}
	fmt.Fprintf(w, "\n%s is read in the order of its access plan %v:\n", ds.Name, t.Plan)
	return Plan(w, *t.State)
}

// epochs writes how a dataset was read in each epoch.
func epochs(w io.Writer, ds daemon.DatasetStatus) error {
	t := ds.Training
	if t == nil || len(t.Epochs) == 0 {
		return nil
	}
	var measured []training.Epoch
	for _, e := range t.Epochs {
		if e.Ranks != nil {
			measured = append(measured, e)
		}
	}
	if err := byPlace(w, t.Epochs); err != nil {
		return err
	}
	if first := t.Epochs[0].Began; first != 0 && ds.Started != 0 {
		fmt.Fprintf(w, "  first read answered %s after the stage-in began\n", seconds(ds.Started, first))
	}
	if t.Plan == nil && t.Epochs[0].Epoch == training.Unknown {
		fmt.Fprintln(w, "  the report has a row for each epoch if the dataset has an access plan: see bivouac plan --help")
	}
	if err := byRanks(w, measured); err != nil {
		return err
	}
	if len(t.Missing) > 0 {
		fmt.Fprintf(w, "  %s not included: no answer\n", strings.Join(t.Missing, ", "))
	}
	return nil
}

// byPlace writes the places of samples, and how long reads waited, as measured by the daemons.
func byPlace(w io.Writer, all []training.Epoch) error {
	t := table(w)
	header := false
	for _, e := range all {
		if e.Began == 0 {
			continue // measured by the ranks only: the mounts served no reads
		}
		if !header {
			fmt.Fprintln(t, "  EPOCH\tPREFETCHED\tLOCAL\tREPLICA\tREMOTE\tSOURCE\tREAD P50\tREAD P99\tTOOK")
			header = true
		}
		fmt.Fprintf(t, "  %s", epochName(e.Epoch))
		for _, p := range e.Named() {
			fmt.Fprintf(t, "\t%s", countOf(*p.Count))
		}
		fmt.Fprintf(t, "\t%s\t%s\t%s\n", short(e.StallP50), short(e.StallP99), seconds(e.Began, e.Ended))
	}
	return t.Flush()
}

// byRanks writes the measurements of the ranks.
func byRanks(w io.Writer, all []training.Epoch) error {
	if len(all) == 0 {
		return nil
	}
	t := table(w)
	fmt.Fprintln(t, "  EPOCH\tRANKS\tBATCHES\tFIRST BATCH\tWAITED\tSTALL P50\tSTALL P99\tSTALL MAX\tSAMPLES")
	for _, e := range all {
		r, waited := e.Ranks, "-"
		if r.Seconds > 0 {
			waited = fmt.Sprintf("%.1f %%", 100*r.Waited/r.Seconds)
		}
		samples := fmt.Sprint(r.Samples)
		for _, name := range slices.Sorted(maps.Keys(r.BySource)) {
			samples += fmt.Sprintf(" %s:%d", name, r.BySource[name])
		}
		fmt.Fprintf(t, "  %s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", epochName(e.Epoch), r.Ranks, r.Batches, short(r.FirstBatch), waited,
			short(r.StallP50), short(r.StallP99), short(r.StallMax), samples)
	}
	return t.Flush()
}

func epochName(e int) string {
	if e == training.Unknown {
		return "all"
	}
	return fmt.Sprint(e)
}

func countOf(c training.Count) string {
	if c == (training.Count{}) {
		return "-"
	}
	return fmt.Sprintf("%d (%s)", c.Samples, metadata.FormatBytes(c.Bytes))
}

// short formats a time in seconds with three digits.
func short(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g µs", s*1e6)
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.2f s", s)
}
