package exporter

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// family is a metric of OpenMetrics.
type family struct{ name, kind string }

var histogram = regexp.MustCompile(`^(.*_seconds)_(?:bucket|sum|count)$`)

// familyOf returns the family of a sample, by our conventions for names: a counter's ends in _total, a
// histogram's in _seconds.
func familyOf(sample string) family {
	if name, ok := strings.CutSuffix(sample, "_total"); ok {
		return family{name, "counter"}
	}
	if m := histogram.FindStringSubmatch(sample); m != nil {
		return family{m[1], "histogram"}
	}
	return family{sample, "gauge"}
}

// openMetrics brings samples into the format OpenMetrics, in which the samples of a family follow each other.
func openMetrics(samples []byte) []byte {
	of := make(map[family][][]byte)
	for line := range bytes.Lines(samples) {
		if end := bytes.IndexAny(line, "{ "); end > 0 {
			f := familyOf(string(line[:end]))
			of[f] = append(of[f], line)
		}
	}
	families := make([]family, 0, len(of))
	for f := range of {
		families = append(families, f)
	}
	slices.SortFunc(families, func(a, b family) int { return strings.Compare(a.name+" "+a.kind, b.name+" "+b.kind) })
	var b bytes.Buffer
	for _, f := range families {
		fmt.Fprintf(&b, "# TYPE %s %s\n", f.name, f.kind)
		for _, line := range of[f] {
			b.Write(line)
		}
	}
	b.WriteString("# EOF\n")
	return b.Bytes()
}
