package simulate

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Result is the prediction for one policy.
type Result struct {
	Policy     Policy  `json:"policy"`
	About      string  `json:"about"`
	Nodes      int     `json:"nodes"`
	Fits       float64 `json:"fits"`        // share of the files that the nodes have room for
	Staged     float64 `json:"staged"`      // seconds until all files that fit were on the nodes
	FirstBatch float64 `json:"first_batch"` // seconds until the first step began
	// Epochs has the first three epochs; later ones are like the third.
	Epochs  []Epoch `json:"epochs"`
	Seconds float64 `json:"seconds"` // of the whole job, staging too
	Stall   float64 `json:"stall"`   // share of Seconds outside steps
	// SourceBytes is the total of bytes read from the source, as a multiple of the size of the dataset.
	SourceBytes float64 `json:"source_bytes"`
}

// Epoch is one epoch of a job.
type Epoch struct {
	Seconds float64 `json:"seconds"`
	Stall   float64 `json:"stall"`  // share of Seconds outside steps
	Waited  float64 `json:"waited"` // seconds that a rank waited for batches, mean of the ranks
	// Bytes of samples, by their place when they were read.
	Local   int64 `json:"local"`
	Replica int64 `json:"replica"`
	Remote  int64 `json:"remote"`
	Source  int64 `json:"source"`
	// Bytes read from the source, by staging too, and bytes that nodes sent to each other.
	SourceBytes int64   `json:"source_bytes"`
	Requests    float64 `json:"source_requests"`
	Wire        int64   `json:"wire"`
}

// last returns the epoch that stands for all later ones.
func (r Result) last() Epoch { return r.Epochs[len(r.Epochs)-1] }

// finish computes the totals, from the bytes of the dataset, the seconds of the steps of an epoch, and the end of the
// last simulated epoch.
func (r *Result) finish(j *Job, bytes, steps, end float64) {
	for i := range r.Epochs {
		r.Epochs[i].Stall = share(r.Epochs[i].Seconds-steps, r.Epochs[i].Seconds)
		r.SourceBytes += float64(r.Epochs[i].SourceBytes)
	}
	more := float64(j.Epochs - len(r.Epochs))
	r.Seconds = end + more*r.last().Seconds
	r.Stall = share(r.Seconds-steps*float64(j.Epochs), r.Seconds)
	r.SourceBytes = share(r.SourceBytes+more*float64(r.last().SourceBytes), bytes)
}

// share returns part/whole, 0 if whole is 0; a negative rounding error becomes 0.
func share(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return max(0, part/whole)
}

// Table writes results as text.
func Table(w io.Writer, j *Job, rs []Result) error {
	total := int64(0)
	for _, s := range j.Sizes {
		total += s
	}
	fmt.Fprintf(w, "%d files, %s; %d epochs; the source's bandwidth alone takes %s for each byte once\n\n", len(j.Sizes), metadata.FormatBytes(total), j.Epochs,
		clock(float64(total)/float64(j.Source.Bandwidth)))
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "NODES\tPOLICY\tFIRST BATCH\tEPOCH 1\tLAST EPOCH\tALL\tSTALL\tLOCAL\tREPLICA\tREMOTE\tSOURCE\tSOURCE READ")
	nodes := 0
	for _, r := range rs {
		n := ""
		if r.Nodes != nodes {
			n, nodes = fmt.Sprint(r.Nodes), r.Nodes
		}
		e := r.last()
		sum := float64(e.Local + e.Replica + e.Remote + e.Source)
		pc := func(b int64) string { return fmt.Sprintf("%.0f %%", 100*share(float64(b), sum)) }
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%.0f %%\t%s\t%s\t%s\t%s\t%.2f\n", n, r.Policy, clock(r.FirstBatch), clock(r.Epochs[0].Seconds), clock(e.Seconds),
			clock(r.Seconds), 100*r.Stall, pc(e.Local), pc(e.Replica), pc(e.Remote), pc(e.Source), r.SourceBytes)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n"+notes(j, rs))
	return err
}

// notes explains the columns, and reports how many nodes would hold the dataset.
func notes(j *Job, rs []Result) string {
	var b strings.Builder
	fmt.Fprintln(&b, "STALL is the share of ALL outside training steps. LOCAL to SOURCE are the places from which the samples of the last epoch are read.")
	fmt.Fprintln(&b, "SOURCE READ is the bytes that the whole job reads from the source, as a multiple of the dataset.")
	told := make(map[int]bool)
	for _, r := range rs {
		if r.Policy == Direct || r.Fits >= 1 || told[r.Nodes] {
			continue
		}
		told[r.Nodes] = true
		fmt.Fprintf(&b, "%d nodes with room for %s each hold %.0f %% of the files: %.0f nodes would hold all.\n", r.Nodes, metadata.FormatBytes(j.Room), 100*r.Fits,
			float64(r.Nodes)/r.Fits+1)
	}
	return b.String()
}

// clock formats seconds in a readable unit.
func clock(s float64) string {
	switch {
	case s < 60:
		return fmt.Sprintf("%.2f s", s)
	case s < 1e9:
		return time.Duration(s * float64(time.Second)).Round(time.Second).String()
	}
	return fmt.Sprintf("%.0f years", s/86400/365)
}
