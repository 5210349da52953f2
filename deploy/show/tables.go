package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// header writes the job and its state.
func header(w io.Writer, s *daemon.Status) {
	state := "starting"
	switch {
	case s.Closing:
		state = "closing"
	case s.Ready:
		state = "ready"
	}
	fmt.Fprintf(w, "job %s  %s  %s  mounted at %s\n", s.Job, state, Count(int64(len(s.Nodes)), "node"), s.Mount)
}

// nodeState returns the state of a node in words for the user.
func nodeState(s *daemon.Status, n *daemon.NodeStatus) string {
	word := map[cluster.State]string{cluster.Joining: "starting", cluster.Up: "ready", cluster.Down: "down", cluster.Leaving: "leaving"}[n.State]
	switch {
	case n.Lost:
		return "lost"
	case n.ID == s.Leader:
		return word + ", leader"
	}
	return word
}

// namesOf returns where the records of a node's files are; the zero value if they have no copies.
func namesOf(n *daemon.NodeStatus) (names cluster.Names) {
	if n.Names != nil {
		names = *n.Names
	}
	return names
}

// namesText describes the place of a node's records in words for the user.
func namesText(n *daemon.NodeStatus) string {
	switch names := namesOf(n); names.State {
	case cluster.NamesCopied:
		return "copied to " + names.Node
	case cluster.NamesCopying:
		return "copying to " + names.Node
	case cluster.NamesServed:
		return "served by " + names.Node + ", " + copyText(names)
	case cluster.NamesLost:
		return strings.TrimSuffix("lost with "+names.Node, " with ")
	default:
		return names.State
	}
}

// copyText describes the other copy of names that another node serves.
func copyText(names cluster.Names) string {
	switch {
	case names.Copy != "":
		return "copied to " + names.Copy
	case names.Copying != "":
		return "copying to " + names.Copying
	default:
		return cluster.NamesSingle
	}
}

// table returns a writer of aligned columns.
func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 4, 2, ' ', 0) }

// nodes writes a line for each node: its room, and its traffic in total or per second.
func nodes(w io.Writer, s *daemon.Status, rates bool) error {
	t := table(w)
	title, copied := "NODE\tSTATE\t", slices.ContainsFunc(s.Nodes, func(n daemon.NodeStatus) bool { return n.Names != nil })
	switched := slices.ContainsFunc(s.Nodes, func(n daemon.NodeStatus) bool { return n.Switch != "" })
	if switched {
		title += "SWITCH\t"
	}
	if copied {
		title += "NAMES\t"
	}
	fmt.Fprintln(t, title+"USED\tFREE\tREAD LOCAL\tREMOTE\tSOURCE\tWRITTEN")
	size := metadata.FormatBytes
	if rates {
		size = func(n int64) string { return metadata.FormatBytes(n) + "/s" }
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		fmt.Fprintf(t, "%s\t%s\t", n.Host, nodeState(s, n))
		if switched {
			fmt.Fprintf(t, "%s\t", cmp.Or(n.Switch, "-"))
		}
		if copied {
			fmt.Fprintf(t, "%s\t", namesText(n))
		}
		if n.Load == nil {
			fmt.Fprintln(t, "-\t-\t-\t-\t-\t-")
			continue
		}
		x := n.Load.Traffic
		if r := n.Load.Rates; rates {
			x = node.Traffic{ReadLocal: int64(r.ReadLocal), ReadRemote: int64(r.ReadRemote), ReadSource: int64(r.ReadSource),
				WriteLocal: int64(r.WriteLocal), WriteRemote: int64(r.WriteRemote)}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", metadata.FormatBytes(n.Load.Space.Used), metadata.FormatBytes(n.Load.Space.Free),
			size(x.ReadLocal), size(x.ReadRemote), size(x.ReadSource), size(x.WriteLocal+x.WriteRemote))
	}
	return t.Flush()
}

// datasets writes a line for each dataset.
func datasets(w io.Writer, all []daemon.DatasetStatus) error {
	if len(all) == 0 {
		return nil
	}
	t := table(w)
	fmt.Fprintln(t, "\nDATASET\tSTATE\tDONE\tFILES\tSIZE\tSOURCE")
	for i := range all {
		ds := &all[i]
		files, bytes, done := ds.Files, ds.Bytes, "-"
		if ds.Progress != nil {
			files, bytes = ds.Progress.Files, ds.Progress.Bytes
		}
		if n, total := amount(ds); total > 0 {
			done = fmt.Sprintf("%.0f%%", 100*min(float64(n)/float64(total), 1))
		}
		if ds.Phase == cluster.Sealed {
			done = "100%"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", ds.Name, phase(ds.Phase), done, files, metadata.FormatBytes(bytes), ds.Source)
	}
	return t.Flush()
}

// Top writes the current traffic: the nodes with their rates, and the datasets.
func Top(w io.Writer, s daemon.Status) error {
	header(w, &s)
	fmt.Fprintln(w)
	if err := nodes(w, &s, true); err != nil {
		return err
	}
	all := s.Current()
	if err := datasets(w, all); err != nil {
		return err
	}
	for i := range all {
		if p := all[i].Progress; p != nil && p.Demand > 0 {
			fmt.Fprintf(w, "%s: readers waited for %s that had not arrived\n", all[i].Name, Count(p.Demand, "piece"))
		}
	}
	for _, o := range s.StageOut {
		stageOut(w, o)
	}
	troubles(w, &s)
	return nil
}
