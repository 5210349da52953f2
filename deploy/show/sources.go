package show

import (
	"fmt"
	"io"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/metadata"
)

// Sources writes a node's measurements of the places from which it reads datasets.
func Sources(w io.Writer, s daemon.Status) error {
	if len(s.Sources) == 0 {
		_, err := fmt.Fprintln(w, "this node has read no dataset through its mount yet")
		return err
	}
	t := table(w)
	fmt.Fprintln(t, "PLACE\tSTATE\tLATENCY\tBANDWIDTH\tSHARE\tREADS\tREPLICAS\tFAILURES\tBYTES")
	for _, p := range s.Sources {
		latency, bandwidth := "-", "-"
		if p.Latency > 0 {
			latency = fmt.Sprintf("%.2f ms", p.Latency*1e3)
		}
		if p.Bandwidth > 0 {
			bandwidth = metadata.FormatBytes(int64(p.Bandwidth)) + "/s"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.0f %%\t%d\t%d\t%d\t%s\n",
			p.Place, p.State, latency, bandwidth, 100*p.Share, p.Reads, p.Replicas, p.Failures, metadata.FormatBytes(p.Bytes))
	}
	return t.Flush()
}
