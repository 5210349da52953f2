package show

import (
	"fmt"
	"io"
	"strings"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

const (
	// longestLine is the maximum number of characters of Line, since job databases truncate longer comments.
	longestLine = 240
	// lineDatasets is how many datasets Line names.
	lineDatasets = 3
)

// Line writes the report as one line for the comment of a job: printable ASCII without quotes.
func Line(w io.Writer, s daemon.Status) error {
	parts := []string{fmt.Sprintf("bivouac: %s", Count(int64(len(s.Nodes)), "node"))}
	all := s.Current()
	for _, ds := range all[:min(len(all), lineDatasets)] {
		parts = append(parts, lineDataset(&ds))
	}
	if more := len(all) - lineDatasets; more > 0 {
		parts = append(parts, Count(int64(more), "dataset")+" more")
	}
	for _, n := range s.Nodes {
		if n.Lost {
			parts = append(parts, n.Host+" lost")
		}
	}
	line := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"'\`+"`", r) {
			return '_'
		}
		return r
	}, strings.Join(parts, "; "))
	if len(line) > longestLine {
		line = line[:longestLine-3] + "..."
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

func lineDataset(ds *daemon.DatasetStatus) string {
	b := fmt.Sprintf("%s %s", ds.Name, phase(ds.Phase))
	if ds.Phase == cluster.Failed || ds.Phase == cluster.Staging {
		return b
	}
	b += fmt.Sprintf(", %s, %s", Count(ds.Files, "file"), metadata.FormatBytes(ds.Bytes))
	if ds.Sealed != 0 {
		b += ", staged in " + seconds(ds.Started, ds.Sealed)
		if ds.SourceSize > 0 {
			b += fmt.Sprintf(", source read %.2fx", float64(ds.SourceBytes)/float64(ds.SourceSize))
		}
	}
	if s := ds.InSource; s != nil {
		b += fmt.Sprintf(", %d without room", s.Files)
	}
	return b + lineReads(ds)
}

// lineReads returns the share of samples that training read from each place, and the share of time that it waited.
func lineReads(ds *daemon.DatasetStatus) (b string) {
	if ds.Training == nil {
		return ""
	}
	var names []string
	samples, sum := make(map[string]int64), int64(0)
	waited, took := 0.0, 0.0
	for _, e := range ds.Training.Epochs {
		for _, p := range e.Named() {
			if samples[p.Name] == 0 && p.Samples > 0 {
				names = append(names, p.Name)
			}
			samples[p.Name] += p.Samples
			sum += p.Samples
		}
		if e.Ranks != nil {
			waited, took = waited+e.Ranks.Waited, took+e.Ranks.Seconds
		}
	}
	for i, name := range names {
		sep := ", reads "
		if i > 0 {
			sep = " "
		}
		b += fmt.Sprintf("%s%s %.0f%%", sep, name, 100*float64(samples[name])/float64(sum))
	}
	if took > 0 {
		b += fmt.Sprintf(", waited %.1f%%", 100*waited/took)
	}
	return b
}
