package show

import (
	"fmt"
	"io"
	"strings"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// seconds returns the time from a to b as text, "-" if either has not happened.
func seconds(a, b metadata.Time) string {
	if a == 0 || b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f s", b.Time().Sub(a.Time()).Seconds())
}

// phase returns the word for a phase in text; JSON has cluster.Phase.
func phase(p cluster.Phase) string {
	switch p {
	case cluster.Sealed:
		return "ready"
	case cluster.Filling:
		return "fetching"
	}
	return p.String()
}

// Status writes the state of the job.
func Status(w io.Writer, s daemon.Status) error {
	header(w, &s)
	limits(w, s)
	if c := s.Scrub; c.Files > 0 {
		fmt.Fprintf(w, "  scrub: %s, %s compared; %d differed and were fetched again, %d are bad\n", Count(c.Files, "file"), metadata.FormatBytes(c.Bytes), c.Repaired, c.Bad)
	}
	if s.Corrupt > 0 {
		fmt.Fprintf(w, "  corrupt: %s of scratch data on this node's drives; reads fail with EIO, the log has inodes and offsets\n", Count(s.Corrupt, "block"))
	}
	if c := s.OneCopy; c != nil {
		oneCopy(w, c)
	}
	if n := s.Swept; n.Objects+n.Inodes+n.Files+n.Waiting > 0 {
		fmt.Fprintf(w, "  orphans after daemon restarts: removed %d objects, %d inodes and %d files; %d objects wait for a node that is down\n",
			n.Objects, n.Inodes, n.Files, n.Waiting)
	}
	fmt.Fprintln(w)
	if err := nodes(w, &s, false); err != nil {
		return err
	}
	all := s.Current()
	if err := datasets(w, all); err != nil {
		return err
	}
	troubles(w, &s)
	for _, o := range s.StageOut {
		stageOut(w, o)
	}
	for _, ds := range all {
		if ds.Error != "" {
			fmt.Fprintf(w, "%s: %s\n", ds.Name, ds.Error)
		}
		Incomplete(w, "", ds)
		unreadable(w, ds)
		overflow(w, ds)
		copies(w, ds)
		if err := plan(w, ds); err != nil {
			return err
		}
	}
	return nil
}

// copies shows the progress of the replicas of a dataset.
func copies(w io.Writer, ds daemon.DatasetStatus) {
	c := ds.Copies
	if c == nil {
		return
	}
	fmt.Fprintf(w, "%s: replicas=%s: %d of %d files, %s of %s (%.0f %%)", ds.Name, ds.Replicas, c.Files, c.OfFiles,
		metadata.FormatBytes(c.Bytes), metadata.FormatBytes(c.OfBytes), 100*float64(c.Bytes)/max(float64(c.OfBytes), 1))
	if c.Given > 0 {
		fmt.Fprintf(w, ", %s given back to other files", metadata.FormatBytes(c.Given))
	}
	if len(c.Full) > 0 {
		fmt.Fprintf(w, ", no room for more on %s", strings.Join(c.Full, ","))
	}
	fmt.Fprintln(w)
}

// oneCopy writes how much must still be copied after the loss of a node.
func oneCopy(w io.Writer, c *daemon.OneCopy) {
	fmt.Fprintf(w, "  one copy: %s of %s with copies=2 lost a copy with a node and are copied again; %s still copying",
		metadata.FormatBytes(c.Bytes), Count(c.Files, "file part"), Count(int64(c.Nodes), "node"))
	if c.Waiting > 0 {
		fmt.Fprintf(w, "; %s more wait for a node that does not answer", Count(c.Waiting, "part"))
	}
	fmt.Fprintln(w)
}

// troubles lists nodes with faults: nodes that are lost or full, and this one if no leader answers it.
func troubles(w io.Writer, s *daemon.Status) {
	if s.Silence > 0 {
		fmt.Fprintf(w, "no leader has answered %s for %.0f s: the control group has no quorum, or this node is cut off from it; "+
			"the states above are old, and calls that need another node wait or fail: run bivouac status on another node\n", s.Host, s.Silence)
	}
	for _, n := range s.Nodes {
		switch {
		case n.Lost:
			fmt.Fprintln(w, node.LossText(n.ID, n.Host, namesOf(&n)))
		case n.Load != nil && n.Load.Space.Full():
			fmt.Fprintf(w, "%s is full: writes to it get ENOSPC, and dataset files without room are read from the source: remove files of scratch\n", n.Host)
		}
	}
}

// stageOut writes the progress of the answering node with its part of the stage-out.
func stageOut(w io.Writer, o stageout.Status) {
	fmt.Fprintf(w, "\nstage-out of %s to %s: %s, %s copied by this node", o.From, o.To, Count(o.Files, "file"), metadata.FormatBytes(o.Bytes))
	if o.Unsettled > 0 {
		fmt.Fprintf(w, ", %d still being written", o.Unsettled)
	}
	if o.Failed > 0 || o.Error != "" {
		fmt.Fprintf(w, ", %d failed: %s", o.Failed, o.Error)
	}
	fmt.Fprintln(w)
}

// unreadable lists the files of a dataset that could not be read from the source.
func unreadable(w io.Writer, ds daemon.DatasetStatus) {
	for _, u := range ds.Unreadable {
		fmt.Fprintf(w, "%s: on %s: %v\n", ds.Name, u.Host, &u.Unreadable)
	}
	if ds.MoreUnreadable > 0 {
		fmt.Fprintf(w, "%s: and %s more: run bivouac verify --source %s to list them\n", ds.Name, Count(ds.MoreUnreadable, "unreadable file"), ds.Name)
	}
}

// overflow lists the files of a dataset that are not on their owners.
func overflow(w io.Writer, ds daemon.DatasetStatus) {
	for _, x := range ds.Overflow {
		if x.Files > 0 {
			fmt.Fprintf(w, "%s: %s has no room for %s, %s, because nodes were lost or scratch has grown: they are read from the source\n",
				ds.Name, x.Host, Count(x.Files, "file"), metadata.FormatBytes(x.Bytes))
		}
		if x.Missing > 0 {
			fmt.Fprintf(w, "%s: %s could not fetch %s that it owns: %s: fix the error, then read them (each read tries again), or stage the source again\n",
				ds.Name, x.Host, Count(x.Missing, "file"), x.Error)
		}
	}
}

// limits writes the effect of the rate limits of the answering node.
func limits(w io.Writer, s daemon.Status) {
	pace := func(what string, p *rate.Stats) {
		if p != nil {
			fmt.Fprintf(w, "  %s by %s: limit %s/s, %s so far, throttled for %.1f s\n", what, s.Host, metadata.FormatBytes(p.Limit), metadata.FormatBytes(p.Bytes), p.Waited)
		}
	}
	pace("staged", s.Paces.Stage)
	pace("served", s.Paces.Serve)
}

// Report writes the job's summary: what was read, where it is, and how long it took.
func Report(w io.Writer, s daemon.Status) error {
	fmt.Fprintf(w, "bivouac report for job %s (%s)\n", s.Job, Count(int64(len(s.Nodes)), "node"))
	p := s.Phases
	fmt.Fprintf(w, "  allocation to mount      %s\n", seconds(p.Created, p.Mounted))
	fmt.Fprintf(w, "  allocation to all nodes  %s\n", seconds(p.Created, p.Up))
	for _, ds := range s.Current() {
		dataset(w, ds)
		if err := epochs(w, ds); err != nil {
			return err
		}
	}
	return nil
}

func dataset(w io.Writer, ds daemon.DatasetStatus) {
	fmt.Fprintf(w, "dataset %s from %s: %s\n", ds.Name, ds.Source, phase(ds.Phase))
	if ds.Phase == cluster.Failed {
		fmt.Fprintf(w, "  error                    %s\n", ds.Error)
		return
	}
	if ds.Phase == cluster.Staging {
		return
	}
	fmt.Fprintf(w, "  files, directories       %d, %d\n", ds.Files, ds.Dirs)
	fmt.Fprintf(w, "  dataset bytes            %d (%s)\n", ds.Bytes, metadata.FormatBytes(ds.Bytes))
	if ds.Phase == cluster.Filling {
		return
	}
	fmt.Fprintf(w, "  source bytes read        %d (%s) of %d\n", ds.SourceBytes, metadata.FormatBytes(ds.SourceBytes), ds.SourceSize)
	if ds.SourceSize > 0 {
		fmt.Fprintf(w, "  source bytes read / source bytes = %.2f\n", float64(ds.SourceBytes)/float64(ds.SourceSize))
	}
	if ds.Adopted > 0 {
		fmt.Fprintf(w, "  adopted files, bytes     %d, %d (%s) that an earlier job left on the nodes\n", ds.Adopted, ds.AdoptedBytes, metadata.FormatBytes(ds.AdoptedBytes))
	}
	d := ds.Sealed.Time().Sub(ds.Started.Time())
	if ds.Sealed != 0 && d > 0 {
		fmt.Fprintf(w, "  ready after              %.2f s, %s/s read from the source\n", d.Seconds(), metadata.FormatBytes(int64(float64(ds.SourceBytes)/d.Seconds())))
	}
	if ds.Skipped > 0 {
		fmt.Fprintf(w, "  left out                 %s that could not be read (bivouac skipped %s)\n", Entries(ds.Skipped), ds.Name)
	}
	perNode(w, ds)
}

func perNode(w io.Writer, ds daemon.DatasetStatus) {
	var most, sum int64
	for _, n := range ds.PerNode {
		fmt.Fprintf(w, "  %-24s %s, %s\n", n.Host, Count(n.Files, "file"), metadata.FormatBytes(n.Bytes))
		most, sum = max(most, n.Bytes), sum+n.Bytes
	}
	if s := ds.Striped; s != nil {
		fmt.Fprintf(w, "  %-24s %s, %s, in stripes\n", s.Host, Count(s.Files, "file"), metadata.FormatBytes(s.Bytes))
	}
	if s := ds.InSource; s != nil {
		fmt.Fprintf(w, "  %-24s %s, %s, without room on the nodes\n", s.Host, Count(s.Files, "file"), metadata.FormatBytes(s.Bytes))
	}
	unreadable(w, ds)
	overflow(w, ds)
	copies(w, ds)
	if sum > 0 {
		mean := float64(sum) / float64(len(ds.PerNode))
		fmt.Fprintf(w, "  imbalance (most / mean)  %.2f\n", float64(most)/mean)
	}
}

// Incomplete writes which part of a dataset is on no node, in separate lines that start with prefix.
func Incomplete(w io.Writer, prefix string, ds daemon.DatasetStatus) {
	if s := ds.InSource; s != nil {
		fmt.Fprintf(w, "%s%s: %d of %d files (%s of %s) do not fit on the nodes and are read from the source: use more nodes, or more space on each (capacity= or up --capacity)\n",
			prefix, ds.Name, s.Files, ds.Files, metadata.FormatBytes(s.Bytes), metadata.FormatBytes(ds.Bytes))
	}
	if ds.Missing > 0 {
		fmt.Fprintf(w, "%s%s: %d of %d files could not be fetched from the source and cannot be read (EIO): bivouac status has names and causes\n",
			prefix, ds.Name, ds.Missing, ds.Files)
	}
}
