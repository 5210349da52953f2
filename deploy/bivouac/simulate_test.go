package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/deploy/simulate"
)

// simulated returns the output of bivouac simulate.
func simulated(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := root()
	c.SetArgs(append([]string{"simulate"}, args...))
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func TestSimulateCommand(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "epochs.svg")
	out, err := simulated(t, "--files", "5000", "--nodes", "2,4", "--policy", "direct,locality", "--step", "10ms", "--source-bandwidth", "50M", "--svg", svg, "--json")
	if err != nil {
		t.Fatal(err)
	}
	var rs []simulate.Result
	if err := json.Unmarshal([]byte(out), &rs); err != nil || len(rs) != 4 || rs[3].Nodes != 4 || rs[3].Policy != simulate.Locality || rs[3].Seconds <= 0 {
		t.Errorf("%v, %+v, want 2 policies on 2 and 4 nodes", err, rs)
	}
	if b, err := os.ReadFile(svg); err != nil || !bytes.HasPrefix(b, []byte("<svg ")) {
		t.Errorf("%v, %.20q, want a picture", err, b)
	}
}

func TestSimulateProbes(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 200_000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := simulated(t, "--files", "1000", "--nodes", "1", "--step", "1ms", "--probe", dir, "--probe-disk", dir)
	if err != nil || strings.Count(out, "measured on this node") != 2 {
		t.Errorf("%v:\n%s\nwant two probes", err, out)
	}
	empty := t.TempDir()
	if _, err := simulated(t, "--files", "1000", "--step", "1ms", "--probe", empty); err == nil || !strings.Contains(err.Error(), "no files are below it") {
		t.Errorf("probe of an empty directory: %v", err)
	}
}

// TestSimulateRefusals: each refusal names the flag and what to do.
func TestSimulateRefusals(t *testing.T) {
	manifest := filepath.Join(t.TempDir(), "sizes")
	if err := os.WriteFile(manifest, []byte("110 a\nb 110\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	good := []string{"--files", "5000", "--step", "10ms", "--source-bandwidth", "50M"}
	for _, c := range []struct{ args, want string }{
		{"--nodes=0", "nodes 0: give 1 to"},
		{"--room=5X", "--room:"},
		{"--policy=fast", "--policy:"},
		{"--mean-size=0", "mean size 0"},
		{"--sigma=NaN", "sigma NaN"},
		{"--files=0", "no dataset: give --files"},
		{"--source-bandwidth=0", "give --source-bandwidth, or --probe"},
		{"--manifest=" + manifest, "not both"},
		{"--files=0 --manifest=" + manifest, "line 2:"},
		{"--files=0 --manifest=/nowhere", "--manifest:"},
		{"--svg=/nowhere/x.svg", "--svg:"},
		{"extra", "unknown command"},
	} {
		if out, err := simulated(t, append(good, strings.Fields(c.args)...)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q\n%s", c.args, err, c.want, out)
		}
	}
}
