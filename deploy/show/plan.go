package show

import (
	"fmt"
	"io"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// Plan writes the progress through an access plan.
func Plan(w io.Writer, s accessplan.State) error {
	line := "  " + planPhase(s)
	if s.Hits+s.Misses > 0 {
		line += fmt.Sprintf(", %.0f %% of the reads were prefetched (%s)", 100*s.HitRate, metadata.FormatBytes(s.Prefetched))
	}
	if _, err := fmt.Fprintln(w, line); err != nil || len(s.Ranks) == 0 {
		return err
	}
	t := table(w)
	fmt.Fprintln(t, "  RANK\tNODE\tEPOCH\tREAD\tAHEAD")
	for _, r := range s.Ranks {
		fmt.Fprintf(t, "  %d\t%s\t%d\t%d\t%d\n", r.Rank, r.Node, r.Epoch, r.Position, r.Ahead)
	}
	return t.Flush()
}

func planPhase(s accessplan.State) string {
	switch s.Phase {
	case accessplan.Following:
		return fmt.Sprintf("followed, epoch %d", s.Epoch)
	case accessplan.Stale:
		return "not followed: " + s.Reason
	case accessplan.Off:
		return "prefetch is off: " + s.Reason
	}
	return "no rank has begun to read"
}
