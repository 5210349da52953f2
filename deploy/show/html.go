package show

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

//go:embed report.html
var reportPage string

var reportTemplate = template.Must(template.New("report").Parse(reportPage))

// The places of a chart, in the units of its SVG.
const (
	barsAt    = 200.0
	barsWidth = 400.0
	rowHeight = 24
)

// chart is rows of horizontal bars on one scale.
type chart struct {
	Title, Note string
	Key         []keyOf
	Rows        []row
	scale       float64 // the value that fills the width
}

// keyOf is the legend entry of a colour.
type keyOf struct{ Class, Text string }

type row struct {
	Label, Text string
	TextY       int
	Parts       []part
}

// part is a segment of a bar that starts at From and is Size long, in the unit of the chart.
type part struct {
	Class      string
	From, Size float64
	X, W       float64
	Y          int
}

// Height returns the height of the SVG.
func (c *chart) Height() int { return len(c.Rows) * rowHeight }

func (c *chart) add(label, text string, parts ...part) {
	for _, p := range parts {
		c.scale = max(c.scale, p.From+p.Size)
	}
	c.Rows = append(c.Rows, row{Label: label, Text: text, Parts: parts})
}

// place computes the positions of the bars from their values.
func (c *chart) place() {
	for i := range c.Rows {
		r := &c.Rows[i]
		r.TextY = i*rowHeight + 16
		for k := range r.Parts {
			p := &r.Parts[k]
			p.Y = i*rowHeight + 4
			if c.scale > 0 {
				p.X, p.W = barsAt+p.From/c.scale*barsWidth, p.Size/c.scale*barsWidth
			}
		}
	}
}

// stack puts the segments of values one after another.
func stack(values ...int64) (parts []part) {
	at := 0.0
	for i, v := range values {
		parts = append(parts, part{Class: string("abc"[i]), From: at, Size: float64(v)})
		at += float64(v)
	}
	return parts
}

// HTML writes the report as one self-contained page.
func HTML(w io.Writer, s daemon.Status) error {
	all := s.Current()
	charts := []*chart{timeline(&s, all), reads(&s)}
	for i := range all {
		charts = append(charts, shares(&all[i]), stalls(&all[i]))
	}
	page := struct {
		Title  string
		Facts  []string
		Charts []*chart
	}{Title: fmt.Sprintf("Bivouac report for job %s (%s)", s.Job, Count(int64(len(s.Nodes)), "node"))}
	for i := range all {
		ds := &all[i]
		fact := fmt.Sprintf("%s: %s, %s, %s, from %s", ds.Name, phase(ds.Phase), Count(ds.Files, "file"), metadata.FormatBytes(ds.Bytes), ds.Source)
		if ds.Error != "" {
			fact += ": " + ds.Error
		}
		page.Facts = append(page.Facts, fact)
	}
	for _, c := range charts {
		if c != nil && len(c.Rows) > 0 {
			c.place()
			page.Charts = append(page.Charts, c)
		}
	}
	return reportTemplate.Execute(w, page)
}

// timeline charts when mounts and datasets were ready, from the allocation on.
func timeline(s *daemon.Status, all []daemon.DatasetStatus) *chart {
	c := &chart{Title: "Staging", Note: "Seconds since the allocation."}
	since := func(t metadata.Time) float64 { return max(t.Time().Sub(s.Phases.Created.Time()).Seconds(), 0) }
	if s.Phases.Created != 0 && s.Phases.Up != 0 {
		c.add("all nodes up", fmt.Sprintf("at %.2f s", since(s.Phases.Up)), part{Class: "b", Size: since(s.Phases.Up)})
	}
	for i := range all {
		ds := &all[i]
		if s.Phases.Created == 0 || ds.Started == 0 {
			continue
		}
		from, text, to := since(ds.Started), phase(ds.Phase), since(ds.Started)
		if ds.Sealed != 0 && ds.Phase == cluster.Sealed {
			to = since(ds.Sealed)
			text = fmt.Sprintf("%.2f to %.2f s, %s read from the source", from, to, metadata.FormatBytes(ds.SourceBytes))
		}
		c.add(ds.Name, text, part{Class: "a", From: from, Size: to - from})
	}
	return c
}

// reads charts the places from which the mount of each node read.
func reads(s *daemon.Status) *chart {
	c := &chart{Title: "Read through the mounts, by place", Key: []keyOf{{"a", "own drives"}, {"b", "other nodes"}, {"c", "source"}},
		Note: "Reads by the kernel alone (page cache, passthrough, kernel views) are not counted."}
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Load != nil {
			t := n.Load.Traffic
			c.add(n.Host, fmt.Sprintf("%s, %s, %s", metadata.FormatBytes(t.ReadLocal), metadata.FormatBytes(t.ReadRemote), metadata.FormatBytes(t.ReadSource)),
				stack(t.ReadLocal, t.ReadRemote, t.ReadSource)...)
		}
	}
	return c
}

// shares charts each node's share of a dataset.
func shares(ds *daemon.DatasetStatus) *chart {
	c := &chart{Title: "Where " + ds.Name + " is"}
	var most, sum int64
	for _, n := range ds.PerNode {
		c.add(n.Host, fmt.Sprintf("%s, %s", Count(n.Files, "file"), metadata.FormatBytes(n.Bytes)), stack(n.Bytes)...)
		most, sum = max(most, n.Bytes), sum+n.Bytes
	}
	if sum > 0 {
		c.Note = fmt.Sprintf("Imbalance (most / mean): %.2f.", float64(most)*float64(len(ds.PerNode))/float64(sum))
	}
	if x := ds.InSource; x != nil {
		c.add("in the source", fmt.Sprintf("%s, %s, without room on the nodes", Count(x.Files, "file"), metadata.FormatBytes(x.Bytes)), part{Class: "c", Size: float64(x.Bytes)})
	}
	return c
}

// stalls charts how long reads of each epoch waited for a daemon.
func stalls(ds *daemon.DatasetStatus) *chart {
	if ds.Training == nil {
		return nil
	}
	c := &chart{Title: "How long reads of " + ds.Name + " waited, by epoch", Key: []keyOf{{"a", "median"}, {"b", "99th percentile"}}}
	for i := range ds.Training.Epochs {
		e := &ds.Training.Epochs[i]
		c.add("epoch "+epochName(e.Epoch), fmt.Sprintf("%.1f ms, %.1f ms; %.1f s in all", 1e3*e.StallP50, 1e3*e.StallP99, e.Waits.Seconds),
			part{Class: "a", Size: e.StallP50}, part{Class: "b", From: e.StallP50, Size: max(e.StallP99-e.StallP50, 0)})
	}
	return c
}
