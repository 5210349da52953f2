package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{5, 1, 100}, 5}, {[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

func TestRatioIsOfMedians(t *testing.T) {
	b := &bench{table: table{Machine: "a machine"}}
	b.table.begin(figure{name: "f", about: "how"})
	for _, v := range []float64{10, 20, 90} {
		b.take("what", "/s", armLoopback, v) // the base, although it came first
	}
	b.take("what", "/s", armBivouac, 30)
	b.take("what", "/s", armPebble, 7)
	b.aim("what", "/s", ">= 2")
	r := b.table.Figures[0].Rows[0]
	if r.Arms[0].Name != armBivouac || r.Ratio != 1.5 {
		t.Errorf("first arm %s, ratio %v, want %s and 1.5", r.Arms[0].Name, r.Ratio, armBivouac)
	}
	var out bytes.Buffer
	b.table.print(&out)
	for _, want := range []string{"a machine", "f: how", "bivouac  loopback", "1.50  >= 2"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

func TestRoundsAlternate(t *testing.T) {
	b := &bench{config: config{rounds: 3}}
	var order []string
	side := func(name string) arm {
		return arm{name, func(context.Context, int) error { order = append(order, name); return nil }}
	}
	if err := b.interleave(t.Context(), side("a"), side("b")); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, ""); got != "abbaab" {
		t.Errorf("arms ran as %s, want abbaab", got)
	}
}

func TestFiguresHaveNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range append(slices.Clone(figures), stageFigures...) {
		if f.name == "" || f.about == "" || f.run == nil || seen[f.name] {
			t.Errorf("figure %q: about %q, or its name is taken", f.name, f.about)
		}
		seen[f.name] = true
	}
	if _, err := parse([]string{"--run", "("}); err == nil {
		t.Error("a bad regular expression is taken")
	}
}

// TestQuick measures everything, a little.
func TestQuick(t *testing.T) { quick(t, len(figures)) }

// TestQuickStage does so for stage-in.
func TestQuickStage(t *testing.T) { quick(t, len(stageFigures), "--stage") }

func quick(t *testing.T, figures int, args ...string) {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	if _, err := exec.LookPath("find"); err != nil {
		t.Skip("needs find, of the package findutils")
	}
	program, err := filepath.Abs("../../bin/bivouac")
	if err != nil {
		t.Fatal(err)
	}
	if p := os.Getenv("BIVOUAC_BIN"); p != "" {
		program = p
	}
	bin := filepath.Join(t.TempDir(), "bench")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	file := filepath.Join(t.TempDir(), "bench.json")
	if out, err := exec.CommandContext(ctx, bin, append(args, "--quick", "--bivouac", program, "--json", file)...).CombinedOutput(); err != nil {
		t.Fatalf("bench: %v\n%s", err, out)
	}
	j, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got table
	if err := json.Unmarshal(j, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Figures) != figures {
		t.Errorf("%d figures, want %d", len(got.Figures), figures)
	}
	for _, f := range got.Figures {
		if len(f.Rows) == 0 {
			t.Errorf("figure %s has no rows", f.Name)
		}
	}
}
