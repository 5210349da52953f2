package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// table is the result of a run.
type table struct {
	Machine string    `json:"machine"`
	Began   time.Time `json:"began"`
	Figures []*result `json:"figures"`
}

// result is the outcome of one figure.
type result struct {
	Name  string `json:"name"`
	About string `json:"about"`
	Rows  []*row `json:"rows"`
	// Notes lists measurements that were not possible, with the reason.
	Notes []string `json:"notes,omitempty"`
}

// row is one measured quantity, by arm. The ratio is the first arm's median to the second's.
type row struct {
	Name  string    `json:"name"`
	Unit  string    `json:"unit"`
	Arms  []*series `json:"arms"`
	Ratio float64   `json:"ratio,omitempty"`
	Aim   string    `json:"aim,omitempty"`  // the target for the ratio
	Want  string    `json:"want,omitempty"` // the target for the value
}

// series holds the samples of one arm.
type series struct {
	Name    string    `json:"name"`
	Median  float64   `json:"median"`
	Samples []float64 `json:"samples"`
}

func newTable() table { return table{Machine: machine(), Began: time.Now()} }

func (t *table) begin(f figure) {
	t.Figures = append(t.Figures, &result{Name: f.name, About: f.about})
}

// row returns the row called name of the current figure, and makes it at its first use.
func (t *table) row(name, unit string) *row {
	r := t.Figures[len(t.Figures)-1]
	for _, w := range r.Rows {
		if w.Name == name {
			return w
		}
	}
	w := &row{Name: name, Unit: unit}
	r.Rows = append(r.Rows, w)
	return w
}

// take adds a sample.
func (b *bench) take(name, unit, arm string, v float64) { b.table.row(name, unit).add(arm, v) }

// note adds a line below the current figure, once.
func (b *bench) note(format string, args ...any) {
	r, line := b.table.Figures[len(b.table.Figures)-1], fmt.Sprintf(format, args...)
	if !slices.Contains(r.Notes, line) {
		r.Notes = append(r.Notes, line)
	}
}

// aim sets the target for the ratio of the first arm to the second.
func (b *bench) aim(name, unit, want string) { b.table.row(name, unit).Aim = want }

// want sets the target for the value itself.
func (b *bench) want(name, unit, value string) { b.table.row(name, unit).Want = value }

func (w *row) add(arm string, v float64) {
	i := slices.IndexFunc(w.Arms, func(s *series) bool { return s.Name == arm })
	if i < 0 {
		w.Arms = append(w.Arms, &series{Name: arm})
		slices.SortStableFunc(w.Arms, func(a, b *series) int { return armOrder(a.Name) - armOrder(b.Name) })
		i = slices.IndexFunc(w.Arms, func(s *series) bool { return s.Name == arm })
	}
	s := w.Arms[i]
	s.Samples = append(s.Samples, v)
	s.Median = median(s.Samples)
	if len(w.Arms) > 1 && w.Arms[1].Median != 0 {
		w.Ratio = w.Arms[0].Median / w.Arms[1].Median
	}
}

// armOrder sorts measured arms before the arms they are compared with.
func armOrder(name string) int {
	order := []string{armGuess, armMeasured, wayLocality, waySelect, wayChunk, waySeed, wayReplicas, wayNoPlan, wayLocal, armPlanned, armView, armBivouac, armOverlap, armAll, armSockets, armFew, armLoopback, armPages, armNative, armBare, armRaw, armMain, armPebble}
	if i := slices.Index(order, name); i >= 0 {
		return i
	}
	return len(order)
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	if n == 0 {
		return 0
	}
	return (s[(n-1)/2] + s[n/2]) / 2
}

func (t *table) print(w io.Writer) {
	fmt.Fprintf(w, "%s\n%s\n", t.Machine, t.Began.Format(time.DateTime))
	for _, r := range t.Figures {
		fmt.Fprintf(w, "\n%s: %s\n", r.Name, r.About)
		tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
		var head string
		for _, q := range r.Rows {
			if h := q.head(); h != head {
				head = h
				fmt.Fprintln(tw, h)
			}
			fmt.Fprintln(tw, q.line())
		}
		_ = tw.Flush() // w is a terminal or a buffer
		for _, n := range r.Notes {
			fmt.Fprintln(w, n)
		}
		fmt.Fprintln(w)
	}
}

// compares reports whether the ratio of the first two arms is meaningful.
func (w *row) compares() bool { return len(w.Arms) == 2 || len(w.Arms) > 2 && w.Aim != "" }

func (w *row) head() string {
	var b strings.Builder
	b.WriteString("\t\t")
	for _, s := range w.Arms {
		b.WriteString(s.Name + "\t")
	}
	switch {
	case w.compares():
		b.WriteString("ratio\taim\t")
	case w.Want != "":
		b.WriteString("aim\t")
	}
	return b.String()
}

func (w *row) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\t%s\t", w.Name, w.Unit)
	for _, s := range w.Arms {
		b.WriteString(number(s.Median) + "\t")
	}
	switch {
	case w.compares():
		fmt.Fprintf(&b, "%.2f\t%s\t", w.Ratio, w.Aim)
	case w.Want != "":
		b.WriteString(w.Want + "\t")
	}
	return b.String()
}

func number(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (t *table) save(path string) error {
	j, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(j, '\n'), 0o644)
}

// machine describes the machine.
func machine() string {
	model := "unknown processor"
	b, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range bytes.Lines(b) {
			if k, v, ok := bytes.Cut(line, []byte(":")); ok && string(bytes.TrimSpace(k)) == "model name" {
				model = string(bytes.TrimSpace(v))
				break
			}
		}
	}
	kernel := "unknown kernel"
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel = "Linux " + unix.ByteSliceToString(u.Release[:])
	}
	return fmt.Sprintf("%d x %s, %s, %s", runtime.NumCPU(), model, kernel, runtime.Version())
}
