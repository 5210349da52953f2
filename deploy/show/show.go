// Package show turns what a daemon says of its job into text for people:
// status, progress and the report at the end. Its one idea is that every
// figure is computed from daemon.Status alone, so text and JSON cannot differ.
// It makes no calls and no decisions.
package show

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// seconds is the time from a to b, "-" if either has not happened.
func seconds(a, b metadata.Time) string {
	if a == 0 || b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f s", b.Time().Sub(a.Time()).Seconds())
}

// phase is the word for a phase in text; JSON has cluster.Phase.
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
	state := "starting"
	switch {
	case s.Closing:
		state = "closing"
	case s.Ready:
		state = "ready"
	}
	fmt.Fprintf(w, "job %s  %s  mounted at %s  epoch %d\n", s.Job, state, s.Mount, s.Epoch)
	fmt.Fprintf(w, "this node (%s): %s used of %s, %d objects\n", s.Host, metadata.FormatBytes(s.Space.Used), metadata.FormatBytes(s.Space.Capacity), s.Space.Objects)
	traffic(w, s)
	if n := s.Swept; n.Objects+n.Inodes+n.Files+n.Waiting > 0 {
		fmt.Fprintf(w, "  orphans after daemon restarts: removed %d objects, %d inodes and %d files; %d objects wait for a node that is down\n",
			n.Objects, n.Inodes, n.Files, n.Waiting)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tHOST\tSTATE\tUSED\tFREE\tADDRESS\tROLE")
	for _, n := range s.Nodes {
		role := ""
		if n.ID == s.Leader {
			role = "leader"
		}
		used, free := "-", "-"
		if x := n.Space; x != nil {
			used, free = metadata.FormatBytes(x.Used), metadata.FormatBytes(x.Free)
		}
		fmt.Fprintf(t, "%d\t%s\t%v\t%s\t%s\t%s\t%s\n", n.ID, n.Host, n.State, used, free, n.Addr, role)
	}
	if len(s.Datasets) > 0 {
		fmt.Fprintln(t, "\nDATASET\tPHASE\tFILES\tBYTES\tSOURCE")
	}
	for _, ds := range s.Datasets {
		files, bytes := ds.Files, ds.Bytes
		if ds.Progress != nil {
			files, bytes = ds.Progress.Files, ds.Progress.Bytes
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\n", ds.Name, phase(ds.Phase), files, metadata.FormatBytes(bytes), ds.Source)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	troubles(w, &s)
	for _, o := range s.StageOut {
		stageOut(w, o)
	}
	for _, ds := range s.Datasets {
		if ds.Error != "" {
			fmt.Fprintf(w, "%s: %s\n", ds.Name, ds.Error)
		}
		Incomplete(w, "", ds)
		unreadable(w, ds)
		displaced(w, ds)
		copies(w, ds)
		if err := plan(w, ds); err != nil {
			return err
		}
	}
	return nil
}

// copies says how far the replicas of a dataset are.
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

// troubles says what is wrong with nodes: those that are lost or full, and this one if no leader answers it.
func troubles(w io.Writer, s *daemon.Status) {
	if s.Silence > 0 {
		fmt.Fprintf(w, "no leader has answered %s for %.0f s: the control group has no quorum, or this node is cut off from it; "+
			"the states above are old, and calls that need another node wait or fail: run bivouac status on another node\n", s.Host, s.Silence)
	}
	for _, n := range s.Nodes {
		switch {
		case n.Lost:
			fmt.Fprintln(w, node.LossText(n.ID, n.Host))
		case n.Space != nil && n.Space.Full():
			fmt.Fprintf(w, "%s is full: writes to it get ENOSPC, and dataset files without room are read from the source: remove files of scratch\n", n.Host)
		}
	}
}

// stageOut says how far the node that answered is with its part.
func stageOut(w io.Writer, o stageout.Status) {
	fmt.Fprintf(w, "\nstage-out of %s to %s: %d files, %s copied by this node", o.From, o.To, o.Files, metadata.FormatBytes(o.Bytes))
	if o.Unsettled > 0 {
		fmt.Fprintf(w, ", %d still being written", o.Unsettled)
	}
	if o.Failed > 0 || o.Error != "" {
		fmt.Fprintf(w, ", %d failed: %s", o.Failed, o.Error)
	}
	fmt.Fprintln(w)
}

// unreadable says which files of a dataset could not be had from the source.
func unreadable(w io.Writer, ds daemon.DatasetStatus) {
	for _, u := range ds.Unreadable {
		fmt.Fprintf(w, "%s: on %s: %v\n", ds.Name, u.Host, &u.Unreadable)
	}
	if ds.MoreUnreadable > 0 {
		fmt.Fprintf(w, "%s: and %d more unreadable files: run bivouac verify --source %s to list them\n", ds.Name, ds.MoreUnreadable, ds.Name)
	}
}

// displaced says which files of a dataset are not on the nodes that are to have them.
func displaced(w io.Writer, ds daemon.DatasetStatus) {
	for _, x := range ds.Overflow {
		if x.Files > 0 {
			fmt.Fprintf(w, "%s: %s has no room for %d files, %s, because nodes were lost or scratch has grown: they are read from the source\n",
				ds.Name, x.Host, x.Files, metadata.FormatBytes(x.Bytes))
		}
		if x.Missing > 0 {
			fmt.Fprintf(w, "%s: %s could not fetch %d files that it owns: %s: fix the error, then read them (each read tries again), or stage the source again\n",
				ds.Name, x.Host, x.Missing, x.Error)
		}
	}
}

// traffic says what the mount of the node that answered has moved.
func traffic(w io.Writer, s daemon.Status) {
	line := func(what string, local, remote int64, localRate, remoteRate float64) {
		fmt.Fprintf(w, "  %-8s local %s (%s/s)  remote %s (%s/s)\n", what,
			metadata.FormatBytes(local), metadata.FormatBytes(int64(localRate)), metadata.FormatBytes(remote), metadata.FormatBytes(int64(remoteRate)))
	}
	t, r := s.Traffic, s.Rates
	line("read", t.ReadLocal, t.ReadRemote, r.ReadLocal, r.ReadRemote)
	if t.ReadSource > 0 {
		fmt.Fprintf(w, "  %-8s from the source %s (%s/s)\n", "", metadata.FormatBytes(t.ReadSource), metadata.FormatBytes(int64(r.ReadSource)))
	}
	line("written", t.WriteLocal, t.WriteRemote, r.WriteLocal, r.WriteRemote)
	pace := func(what string, p *rate.Stats) {
		if p != nil {
			fmt.Fprintf(w, "  %s: limit %s/s, %s so far, throttled for %.1f s\n", what, metadata.FormatBytes(p.Limit), metadata.FormatBytes(p.Bytes), p.Waited)
		}
	}
	pace("staged", s.Paces.Stage)
	pace("served", s.Paces.Serve)
	fmt.Fprintf(w, "  %d files opened that the kernel reads directly (%.0f/s)\n", t.Passthrough, r.Passthrough)
	if t.Prefetched > 0 {
		fmt.Fprintf(w, "  %d files prefetched for sequential dataset readers (%.0f/s)\n", t.Prefetched, r.Prefetched)
	}
}

// Report writes the job's summary: what was read, where it is, how long it took.
func Report(w io.Writer, s daemon.Status) error {
	fmt.Fprintf(w, "bivouac report for job %s (%d nodes)\n", s.Job, len(s.Nodes))
	p := s.Phases
	fmt.Fprintf(w, "  allocation to mount      %s\n", seconds(p.Created, p.Mounted))
	fmt.Fprintf(w, "  allocation to all nodes  %s\n", seconds(p.Created, p.Up))
	for _, ds := range s.Datasets {
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
	d := ds.Sealed.Time().Sub(ds.Started.Time())
	if ds.Sealed != 0 && d > 0 {
		fmt.Fprintf(w, "  ready after              %.2f s, %.3f GB/s\n", d.Seconds(), float64(ds.SourceBytes)/1e9/d.Seconds())
	}
	if ds.Skipped > 0 {
		fmt.Fprintf(w, "  left out                 %d entries that could not be read (bivouac skipped %s)\n", ds.Skipped, ds.Name)
	}
	perNode(w, ds)
}

func perNode(w io.Writer, ds daemon.DatasetStatus) {
	var most, sum int64
	for _, n := range ds.PerNode {
		fmt.Fprintf(w, "  %-24s %d files, %s\n", n.Host, n.Files, metadata.FormatBytes(n.Bytes))
		most, sum = max(most, n.Bytes), sum+n.Bytes
	}
	if s := ds.Striped; s != nil {
		fmt.Fprintf(w, "  %-24s %d files, %s, in stripes\n", s.Host, s.Files, metadata.FormatBytes(s.Bytes))
	}
	if s := ds.InSource; s != nil {
		fmt.Fprintf(w, "  %-24s %d files, %s, without room on the nodes\n", s.Host, s.Files, metadata.FormatBytes(s.Bytes))
	}
	unreadable(w, ds)
	displaced(w, ds)
	copies(w, ds)
	if sum > 0 {
		mean := float64(sum) / float64(len(ds.PerNode))
		fmt.Fprintf(w, "  imbalance (most / mean)  %.2f\n", float64(most)/mean)
	}
}

// Progress shows the staging of datasets: one line that is rewritten on a
// terminal, a line now and then elsewhere.
type Progress struct {
	W        io.Writer
	Terminal bool

	last  time.Time
	shown map[string]cluster.Phase
}

// every is the pause between two plain lines about the same phase.
const every = 5 * time.Second

// Show writes the state of ds if there is something new to say. That it failed
// is not said here: whoever waits for it ends with the reason.
func (p *Progress) Show(ds daemon.DatasetStatus, at time.Time) {
	if p.shown == nil {
		p.shown = make(map[string]cluster.Phase)
	}
	old, known := p.shown[ds.Name]
	turned := !known || old != ds.Phase
	moves := ds.Phase == cluster.Staging || ds.Phase == cluster.Filling
	if !turned && (!moves || !p.Terminal && at.Sub(p.last) < every) {
		return
	}
	p.shown[ds.Name], p.last = ds.Phase, at
	l := line(ds, at)
	switch {
	case p.Terminal && ds.Phase == cluster.Failed:
		fmt.Fprint(p.W, "\r\033[K")
	case ds.Phase == cluster.Failed:
	case p.Terminal && moves:
		fmt.Fprintf(p.W, "\r\033[K%s", l)
	case p.Terminal:
		fmt.Fprintf(p.W, "\r\033[K%s\n", l)
	default:
		fmt.Fprintln(p.W, l)
	}
}

// Incomplete says which part of a dataset is on no node, after prefix, in lines of their own.
func Incomplete(w io.Writer, prefix string, ds daemon.DatasetStatus) {
	if s := ds.InSource; s != nil {
		fmt.Fprintf(w, "%s%s: %d of %d files (%s of %s) have no room on the nodes and stay in the source: each read of them goes there; more nodes or a higher capacity= make room\n",
			prefix, ds.Name, s.Files, ds.Files, metadata.FormatBytes(s.Bytes), metadata.FormatBytes(ds.Bytes))
	}
	if ds.Missing > 0 {
		fmt.Fprintf(w, "%s%s: %d of %d files could not be fetched from the source, and reads of them fail with EIO: bivouac status has names and causes\n",
			prefix, ds.Name, ds.Missing, ds.Files)
	}
}

// line is what is to be said of a dataset now.
func line(ds daemon.DatasetStatus, at time.Time) string {
	switch ds.Phase {
	case cluster.Sealed:
		return fmt.Sprintf("bivouac: %s: %d files, %s, ready in %s", ds.Name, ds.Files, metadata.FormatBytes(ds.Bytes), seconds(ds.Started, ds.Sealed))
	case cluster.Publishing:
		return fmt.Sprintf("bivouac: %s: %d files, distributing the manifest", ds.Name, ds.Files)
	}
	if ds.Progress == nil || ds.Total == 0 {
		if ds.Phase == cluster.Filling {
			return fmt.Sprintf("bivouac: %s: %d files, %s, readable; fetching the files", ds.Name, ds.Files, metadata.FormatBytes(ds.Bytes))
		}
		return fmt.Sprintf("bivouac: %s: scanning %s", ds.Name, ds.Source)
	}
	done, took := ds.Progress.SourceBytes, at.Sub(ds.Started.Time()).Seconds()
	if ds.Phase == cluster.Filling {
		done = ds.Progress.Bytes // the total is of what is to be there
	}
	frac := min(float64(done)/float64(ds.Total), 1)
	rate, eta := 0.0, "?"
	if took > 0 {
		rate = float64(done) / took
	}
	if rate > 0 {
		eta = (time.Duration(float64(ds.Total-done)/rate*1e9) * time.Nanosecond).Round(time.Second).String()
	}
	const width = 24
	n := int(frac * width)
	l := fmt.Sprintf("bivouac: %s [%s%s] %3.0f%%  %d files  %s  %s/s  ETA %s", ds.Name,
		strings.Repeat("=", n), strings.Repeat(" ", width-n), frac*100, ds.Progress.Files, metadata.FormatBytes(done), metadata.FormatBytes(int64(rate)), eta)
	if x := ds.Progress.Imbalance(); x > 0 {
		l += fmt.Sprintf("  imbalance %.2f", x)
	}
	return l
}
