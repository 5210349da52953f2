// Package show turns what a daemon says of its job into text for people:
// status, progress and the report at the end. Its one idea is that every
// figure is computed from daemon.Status alone, so text and JSON cannot differ.
// It makes no calls and no decisions.
package show

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/bivouacfs/bivouac/daemon"
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
	fmt.Fprintln(t, "NODE\tHOST\tSTATE\tADDRESS\tROLE")
	for _, n := range s.Nodes {
		role := ""
		if n.ID == s.Leader {
			role = "leader"
		}
		fmt.Fprintf(t, "%d\t%s\t%v\t%s\t%s\n", n.ID, n.Host, n.State, n.Addr, role)
	}
	all := s.Current()
	if len(all) > 0 {
		fmt.Fprintln(t, "\nDATASET\tPHASE\tFILES\tBYTES\tSOURCE")
	}
	for _, ds := range all {
		files, bytes := ds.Files, ds.Bytes
		if ds.Progress != nil {
			files, bytes = ds.Progress.Files, ds.Progress.Bytes
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\n", ds.Name, phase(ds.Phase), files, metadata.FormatBytes(bytes), ds.Source)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	lost(w, s.Nodes)
	for _, o := range s.StageOut {
		stageOut(w, o)
	}
	for _, ds := range all {
		if ds.Error != "" {
			fmt.Fprintf(w, "%s: %s\n", ds.Name, ds.Error)
		}
		Incomplete(w, "", ds)
		unreadable(w, ds)
		displaced(w, ds)
	}
	return nil
}

// lost says what scratch has lost with nodes.
func lost(w io.Writer, nodes []daemon.NodeStatus) {
	for _, n := range nodes {
		switch {
		case !n.Lost:
		case n.ID == metadata.RootIno.Home():
			fmt.Fprintf(w, "%s is lost, and with it the root of scratch: scratch is unavailable until it is back\n", n.Host)
		default:
			fmt.Fprintf(w, "%s is lost: scratch files with data there, and directories kept there with their contents, fail with EIO until it is back; rm -rf removes them\n", n.Host)
		}
	}
}

// stageOut says how far the node that answered is with its part.
func stageOut(w io.Writer, o stageout.Status) {
	fmt.Fprintf(w, "\nstage-out of %s to %s: %s, %s copied by this node", o.From, o.To, count(o.Files, "file"), metadata.FormatBytes(o.Bytes))
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
		fmt.Fprintf(w, "%s: and %s more: run bivouac verify --source %s to list them\n", ds.Name, count(ds.MoreUnreadable, "unreadable file"), ds.Name)
	}
}

// displaced says which files of a dataset are not on the nodes that are to have them.
func displaced(w io.Writer, ds daemon.DatasetStatus) {
	for _, x := range ds.Overflow {
		if x.Files > 0 {
			fmt.Fprintf(w, "%s: %s has no room for %s, %s, because nodes were lost or scratch has grown: they are read from the source\n",
				ds.Name, x.Host, count(x.Files, "file"), metadata.FormatBytes(x.Bytes))
		}
		if x.Missing > 0 {
			fmt.Fprintf(w, "%s: %s could not fetch %s that it owns: %s: fix the error, then read them (each read tries again), or stage the source again\n",
				ds.Name, x.Host, count(x.Missing, "file"), x.Error)
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
	fmt.Fprintf(w, "bivouac report for job %s (%s)\n", s.Job, count(int64(len(s.Nodes)), "node"))
	p := s.Phases
	fmt.Fprintf(w, "  allocation to mount      %s\n", seconds(p.Created, p.Mounted))
	fmt.Fprintf(w, "  allocation to all nodes  %s\n", seconds(p.Created, p.Up))
	for _, ds := range s.Current() {
		dataset(w, ds)
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
		fmt.Fprintf(w, "  left out                 %s that could not be read (bivouac skipped %s)\n", Entries(ds.Skipped), ds.Name)
	}
	perNode(w, ds)
}

func perNode(w io.Writer, ds daemon.DatasetStatus) {
	var most, sum int64
	for _, n := range ds.PerNode {
		fmt.Fprintf(w, "  %-24s %s, %s\n", n.Host, count(n.Files, "file"), metadata.FormatBytes(n.Bytes))
		most, sum = max(most, n.Bytes), sum+n.Bytes
	}
	if s := ds.Striped; s != nil {
		fmt.Fprintf(w, "  %-24s %s, %s, in stripes\n", s.Host, count(s.Files, "file"), metadata.FormatBytes(s.Bytes))
	}
	if s := ds.InSource; s != nil {
		fmt.Fprintf(w, "  %-24s %s, %s, without room on the nodes\n", s.Host, count(s.Files, "file"), metadata.FormatBytes(s.Bytes))
	}
	unreadable(w, ds)
	displaced(w, ds)
	if sum > 0 {
		mean := float64(sum) / float64(len(ds.PerNode))
		fmt.Fprintf(w, "  imbalance (most / mean)  %.2f\n", float64(most)/mean)
	}
}

// Incomplete says which part of a dataset is on no node, after prefix, in lines of their own.
func Incomplete(w io.Writer, prefix string, ds daemon.DatasetStatus) {
	if s := ds.InSource; s != nil {
		fmt.Fprintf(w, "%s%s: %d of %d files (%s of %s) have no room on the nodes and stay in the source: each read of them goes there; more nodes or more space on each (capacity= or up --capacity) make room\n",
			prefix, ds.Name, s.Files, ds.Files, metadata.FormatBytes(s.Bytes), metadata.FormatBytes(ds.Bytes))
	}
	if ds.Missing > 0 {
		fmt.Fprintf(w, "%s%s: %d of %d files could not be fetched from the source, and reads of them fail with EIO: bivouac status has names and causes\n",
			prefix, ds.Name, ds.Missing, ds.Files)
	}
}
