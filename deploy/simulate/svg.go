package simulate

import (
	"fmt"
	"io"
	"strings"
)

// The layout of the picture, in pixels.
const (
	svgRow   = 26
	svgLeft  = 130
	svgBars  = 460
	svgWidth = 820
)

// SVG draws the last epoch of each result as a bar of steps and stall. The file is self-contained, and follows the
// reader's dark or light scheme.
func SVG(w io.Writer, rs []Result) error {
	longest := 0.0
	for _, r := range rs {
		longest = max(longest, r.last().Seconds)
	}
	height := 48 + svgRow*len(rs)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="Time of an epoch under each policy">`+"\n",
		svgWidth, height)
	b.WriteString(`<style>
  .ink { fill: #1f2933; } .dim { fill: #52606d; } .step { fill: #3ebd93; } .stall { fill: #e66a6a; }
  @media (prefers-color-scheme: dark) { .ink { fill: #f5f7fa; } .dim { fill: #9aa5b1; } }
</style>
`)
	y := 8
	for _, r := range rs {
		e := r.last()
		wide := svgBars * share(e.Seconds, longest)
		stall := wide * e.Stall
		fmt.Fprintf(&b, `<text class="ink" x="%d" y="%d" text-anchor="end">%s, %d</text>`, svgLeft-8, y+15, r.Policy, r.Nodes)
		fmt.Fprintf(&b, `<rect class="step" x="%d" y="%d" width="%.1f" height="20"/>`, svgLeft, y, wide-stall)
		fmt.Fprintf(&b, `<rect class="stall" x="%.1f" y="%d" width="%.1f" height="20"/>`, svgLeft+wide-stall, y, stall)
		fmt.Fprintf(&b, `<text class="dim" x="%.1f" y="%d">%s, first batch %s</text>`+"\n", svgLeft+wide+8, y+15, clock(e.Seconds), clock(r.FirstBatch))
		y += svgRow
	}
	fmt.Fprintf(&b, `<text class="dim" x="%d" y="%d">last epoch of each policy and number of nodes; green: training steps, red: waiting for data</text>`+"\n</svg>\n", svgLeft, y+20)
	_, err := io.WriteString(w, b.String())
	return err
}
