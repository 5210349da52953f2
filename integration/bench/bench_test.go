package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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
		b.take("what", "/s", armLoopback, v) // the base, although it was taken first
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
	for _, f := range slices.Concat(figures, stageFigures, trainFigures, faultFigures) {
		if f.name == "" || f.about == "" || f.run == nil || seen[f.name] {
			t.Errorf("figure %q: about %q, or its name is taken", f.name, f.about)
		}
		seen[f.name] = true
	}
	if _, err := parse([]string{"--run", "("}); err == nil {
		t.Error("a bad regular expression is taken")
	}
}

// TestQuick runs each figure briefly.
func TestQuick(t *testing.T) { quick(t, len(figures)) }

// TestQuickStage does the same for stage-in.
func TestQuickStage(t *testing.T) { quick(t, len(stageFigures), "--stage") }

// TestQuickTrain does the same for training.
func TestQuickTrain(t *testing.T) {
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import torch").CombinedOutput(); err != nil {
		t.Skipf("needs the package python3-torch: %v: %s", err, lastLine(out))
	}
	module, err := filepath.Abs("../../fsclient/python")
	if err != nil {
		t.Fatal(err)
	}
	quick(t, len(trainFigures), "--train", "--python", python, "--module", module, "--arms", "Sampler|copy|selection")
}

// TestQuickVeth does the same over veth pairs.
func TestQuickVeth(t *testing.T) { quick(t, len(vethFigures), "--veth") }

// TestQuickFaults omits the loss of a node, which takes half a minute.
func TestQuickFaults(t *testing.T) { quick(t, 2, "--faults", "--run", "kill|copies") }

func quick(t *testing.T, figures int, args ...string) {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	for program, pkg := range map[string]string{"find": "findutils", "mkfs.ext4": "e2fsprogs", "ip": "iproute2"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s, of the package %s", program, pkg)
		}
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

// TestMain acts as a worker if spawn started this program.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "worker" {
		exit(worker(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// TestImagesAreInOrder: train.py numbers the files in the order of the sizes.
func TestImagesAreInOrder(t *testing.T) {
	s, err := makeImages(1000)
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for i := range s.sizes {
		if p := s.path(i); p <= last {
			t.Fatalf("file %d is %s, and the one before is %s", i, p, last)
		} else {
			last = p
		}
	}
}

func TestQuantile(t *testing.T) {
	v := []float64{5, 1, 4, 2, 3}
	for _, c := range []struct{ q, want float64 }{{0, 1}, {0.5, 3}, {0.99, 5}, {1, 5}} {
		if got := quantile(v, c.q); got != c.want {
			t.Errorf("quantile(%v, %v) = %v, want %v", v, c.q, got, c.want)
		}
	}
}

// TestWaited: a step waits for the slowest rank.
func TestWaited(t *testing.T) {
	o := outcome{ranks: make([]rankResult, 2), epochs: make([]epochSeen, 2)}
	for r, all := range []string{
		`{"epochs": [{"waits": [9, 1]}, {"waits": [1, 2]}]}`,
		`{"epochs": [{"waits": [0, 5]}, {"waits": [3, 1]}]}`,
	} {
		if err := json.Unmarshal([]byte(all), &o.ranks[r]); err != nil {
			t.Fatal(err)
		}
	}
	if got := o.waited(0); got != 9+5+3+2 {
		t.Errorf("waited(0) = %v, want 19", got)
	}
	if got := o.waited(1); got != 3+2 {
		t.Errorf("waited(1) = %v, want 5", got)
	}
}

// TestNotes: a note is printed once.
func TestNotes(t *testing.T) {
	b := &bench{table: table{Machine: "a machine"}}
	b.table.begin(figure{name: "f", about: "how"})
	b.note("not available: %s", "x")
	b.note("not available: %s", "x")
	b.take("what", "", armBivouac, 1)
	b.want("what", "", "1.00")
	var out bytes.Buffer
	b.table.print(&out)
	if s := out.String(); strings.Count(s, "not available: x") != 1 || !strings.Contains(s, "1.00  1.00") {
		t.Errorf("the table lacks a note or a wanted value, or has one twice:\n%s", s)
	}
}

// TestSpawnAllOrNone: if one worker does not start, the earlier ones are ended.
func TestSpawnAllOrNone(t *testing.T) {
	dir := t.TempDir()
	list := filepath.Join(dir, "list")
	if err := writeLines(list, nil); err != nil {
		t.Fatal(err)
	}
	cs, err := spawnAll(3, func(i int) ([]string, error) {
		if i == 2 {
			return []string{"nothing", "that", "works"}, nil
		}
		return []string{"bare-server", list, filepath.Join(dir, strconv.Itoa(i)), "127.0.0.1"}, nil
	})
	if err == nil || cs != nil {
		t.Fatalf("spawnAll = %v, %v, want an error", cs, err)
	}
	for i := range 2 {
		addr, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		if conn, err := net.Dial("tcp", string(addr)); err == nil {
			_ = conn.Close() // nothing was requested
			t.Errorf("worker %d still answers at %s", i, addr)
		}
	}
}

// TestListOnce counts files, not directories or headings.
func TestListOnce(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "d"), 0o755), write(filepath.Join(dir, "a"), payload[:1]), write(filepath.Join(dir, "d", "b"), payload[:1])); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"find", "-type", "f", "-size", "+0"}, {"ls", "-lR"}} {
		if _, err := exec.LookPath(args[0]); err != nil {
			t.Skip(err)
		}
		if _, err := listOnce(t.Context(), dir, args, 2); err != nil {
			t.Error(err)
		}
		if _, err := listOnce(t.Context(), dir, args, 3); err == nil {
			t.Errorf("%q: a file that is missing is not noticed", args)
		}
	}
}
