package show

import (
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Progress shows the staging of datasets: a bar for each on a terminal, occasional lines elsewhere. Close must be
// called at the end.
type Progress struct {
	W        io.Writer
	Terminal bool
	// Path returns the path of a dataset, below $BIVOUAC_DATA.
	Path func(ds *daemon.DatasetStatus) string

	bars    *mpb.Progress
	refresh chan any
	shown   map[metadata.DatasetID]*shown
}

// shown is the state of a dataset's display.
type shown struct {
	phase cluster.Phase
	at    time.Time // of the last plain line
	pace  pace
	bar   *mpb.Bar
	text  atomic.Pointer[string] // next to the bar
}

// every is the interval between two plain lines about the same phase.
const every = 5 * time.Second

// Show shows the state of datasets at this time. It does not show failures: the command that waits ends with the
// reason.
func (p *Progress) Show(all []daemon.DatasetStatus, at time.Time) {
	for i := range all {
		p.show(&all[i], at)
	}
	if p.bars != nil {
		p.refresh <- at
	}
}

func (p *Progress) show(ds *daemon.DatasetStatus, at time.Time) {
	if p.shown == nil {
		p.shown = make(map[metadata.DatasetID]*shown)
	}
	x, known := p.shown[ds.ID]
	if !known {
		x = new(shown)
		p.shown[ds.ID] = x
	}
	turned := !known || x.phase != ds.Phase
	x.phase = ds.Phase
	x.pace.observe(ds, at)
	moves := ds.Phase == cluster.Staging || ds.Phase == cluster.Filling
	switch {
	case p.Terminal && moves:
		p.draw(x, ds)
	case p.Terminal && turned:
		p.finish(x, ds)
	case ds.Phase.Ended(), !turned && (!moves || at.Sub(x.at) < every):
	default:
		x.at = at
		fmt.Fprintf(p.W, "bivouac: %s: %s\n", ds.Name, p.line(x, ds))
	}
}

// draw moves the bar of a dataset.
func (p *Progress) draw(x *shown, ds *daemon.DatasetStatus) {
	if p.bars == nil {
		p.refresh = make(chan any)
		p.bars = mpb.New(mpb.WithOutput(p.W), mpb.ForceTTY(), mpb.WithManualRefresh(p.refresh), mpb.WithWidth(lineWidth))
	}
	x.text.Store(new(p.line(x, ds)))
	if x.bar == nil {
		x.bar = p.bars.AddBar(0, mpb.BarWidth(24), mpb.PrependDecorators(decor.Name("bivouac: "+ds.Name+" ")),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + *x.text.Load() })))
	}
	done, total := amount(ds)
	x.bar.SetTotal(total, false)
	x.bar.SetCurrent(min(done, total-1)) // a bar that is complete stays as it is
}

// finish replaces the bar of a dataset by a line.
func (p *Progress) finish(x *shown, ds *daemon.DatasetStatus) {
	w := p.W
	if x.bar != nil {
		x.bar.Abort(true)
		w, x.bar = p.bars, nil
	}
	if !ds.Phase.Ended() {
		fmt.Fprintf(w, "bivouac: %s: %s\n", ds.Name, p.line(x, ds))
	}
}

// Close removes the bars.
func (p *Progress) Close() {
	if p.bars == nil {
		return
	}
	for _, x := range p.shown {
		if x.bar != nil {
			x.bar.Abort(true)
		}
	}
	p.bars.Wait()
	p.bars = nil
}

// amount returns how many bytes are done, and the total.
func amount(ds *daemon.DatasetStatus) (done, total int64) {
	if ds.Progress == nil {
		return 0, ds.Total
	}
	if ds.Phase == cluster.Filling { // the total counts every file
		return ds.Progress.Bytes, ds.Total
	}
	return min(ds.Progress.SourceBytes, ds.Total), ds.Total // headers are read twice
}

// line returns the plain line about a dataset's state.
func (p *Progress) line(x *shown, ds *daemon.DatasetStatus) string {
	files := Count(ds.Files, "file")
	done, total := amount(ds)
	switch {
	case ds.Phase == cluster.Sealed:
		return fmt.Sprintf("%s, %s, ready in %s: $BIVOUAC_DATA/%s", files, metadata.FormatBytes(ds.Bytes), seconds(ds.Started, ds.Sealed), p.Path(ds))
	case ds.Phase == cluster.Publishing:
		return files + ", distributing the manifest"
	case ds.Phase == cluster.Filling && total == 0:
		return fmt.Sprintf("%s, %s, readable: $BIVOUAC_DATA/%s; fetching the files", files, metadata.FormatBytes(ds.Bytes), p.Path(ds))
	case total == 0 || ds.Progress == nil:
		return "scanning " + ds.Source
	}
	l := fmt.Sprintf("%3.0f%%  %s  %s of %s  %s", 100*min(float64(done)/float64(total), 1), Count(ds.Progress.Files, "file"),
		metadata.FormatBytes(done), metadata.FormatBytes(total), x.pace.left(total-done))
	if i := ds.Progress.Imbalance(); i > 0 {
		l += fmt.Sprintf("  imbalance %.2f", i)
	}
	return l
}

// pace is the recent rate of a stage-in, as measured by this process, since the clock of another node may differ.
type pace struct {
	at   time.Time
	done int64
	rate float64 // bytes per second, a moving average; 0: not known
}

const (
	// lineWidth is the width of a line where the width of the terminal is not known.
	lineWidth = 120
	// paceSpan is the time over which the rate is averaged.
	paceSpan = 10 * time.Second
	// paceLeast is the shortest time over which a rate is measured.
	paceLeast = time.Second
	// mostLeft is the longest remaining time that is shown.
	mostLeft = 100 * time.Hour
)

// observe records the progress of ds.
func (p *pace) observe(ds *daemon.DatasetStatus, at time.Time) {
	done, _ := amount(ds)
	took := at.Sub(p.at)
	switch {
	case p.at.IsZero(), done < p.done: // a new phase restarts the count
		*p = pace{at: at, done: done}
	case took >= paceLeast:
		now := float64(done-p.done) / took.Seconds()
		if p.rate == 0 {
			p.rate = now
		} else {
			p.rate += (now - p.rate) * (1 - math.Exp(-took.Seconds()/paceSpan.Seconds()))
		}
		p.at, p.done = at, done
	}
}

// left returns the rate and the time that n more bytes take, as text.
func (p *pace) left(n int64) string {
	d := time.Duration(math.MaxInt64)
	if s := float64(n) / p.rate; p.rate > 0 && s < mostLeft.Seconds() {
		d = time.Duration(s * float64(time.Second)).Round(time.Second)
	}
	switch rate := metadata.FormatBytes(int64(p.rate)); {
	case n <= 0:
		return "finishing"
	case p.rate == 0:
		return "ETA ?"
	case d > mostLeft:
		return rate + "/s  ETA ?"
	default:
		return fmt.Sprintf("%s/s  ETA %v", rate, max(d, time.Second))
	}
}

// Count returns a count of things in words.
func Count(n int64, thing string) string {
	stem, y := strings.CutSuffix(thing, "y")
	switch {
	case n == 1:
	case y:
		thing = stem + "ies"
	default:
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// Entries returns a count of entries of a source in words.
func Entries(n int64) string { return Count(n, "entry") }
