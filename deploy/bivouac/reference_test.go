package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/pitch"
	"github.com/bivouacfs/bivouac/stagein"
)

var rewrite = flag.Bool("rewrite", false, "TestReference writes the reference instead of comparing it")

const referencePath = "../docs/reference.md"

// longest is the maximum length, in characters, of a description in the reference.
const longest = 160

// TestReference: reference.md matches the code: options, commands with their flags, keys and metrics.
func TestReference(t *testing.T) {
	r := &reference{t: t}
	r.printf("# Reference\n\n")
	r.printf("This page is generated from the code: `go test ./deploy/bivouac -run TestReference -rewrite` writes it, and a test fails when it is\nout of date.\n\n")
	r.printf("Contents: [options of jobs](#options-of-jobs) · [keys of a source](#keys-of-a-source) · [keys of a job](#keys-of-a-job) ·\n")
	r.printf("[commands](#commands) · [internal commands](#internal-commands) · [site configuration](#site-configuration) · [metrics](#metrics)\n\n")
	r.printf("`SIZE` is a number of bytes, or one with K, M, G or T (powers of 1024). `TIME` is a number of seconds, or a time such as 1m30s.\n\n")
	r.slurm()
	r.keys("Keys of a source", "They follow the source in `--bivouac-stage-in` and in `bivouac stage-in`, separated by commas.", stagein.Keys)
	r.keys("Keys of a job", "They are the value of `--bivouac-opts`, separated by commas.", pitch.OptionKeys)
	r.commands("Commands", "Every command has `--help`. Commands marked with * also have these flags:", true)
	r.commands("Internal commands", "The Slurm plugin, the keeper and the build run them.", false)
	site, err := pitch.SiteKeys()
	if err != nil {
		t.Fatal(err)
	}
	r.keys("Site configuration", "`"+pitch.SitePath+"` is YAML, the same file on all nodes and submit hosts. An unknown key is an error.", site)
	r.metrics()

	text := bytes.TrimRight(r.b.Bytes(), "\n")
	text = append(text, '\n')
	if *rewrite {
		if err := os.WriteFile(referencePath, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old, err := os.ReadFile(referencePath); err != nil || !bytes.Equal(old, text) {
		t.Errorf("reference.md is not what the code has (%v): go test ./deploy/bivouac -run TestReference -rewrite, and commit it", err)
	}
}

// reference collects the page.
type reference struct {
	t *testing.T
	b bytes.Buffer
}

func (r *reference) printf(format string, args ...any) { fmt.Fprintf(&r.b, format, args...) }

// row prints a row of a table; the last cell is the meaning.
func (r *reference) row(cells ...string) {
	r.t.Helper()
	if m := cells[len(cells)-1]; m == "" || strings.Contains(m, "\n") || len([]rune(m)) > longest {
		r.t.Errorf("%s: want a meaning of one line of at most %d characters: %q", cells[0], longest, m)
	}
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", `\|`)
	}
	r.printf("| %s |\n", strings.Join(cells, " | "))
}

func (r *reference) keys(title, about string, keys []stagein.Key) {
	r.printf("## %s\n\n%s\n\n| key | default | meaning |\n|---|---|---|\n", title, about)
	for _, k := range keys {
		r.row("`"+k.Name+"="+k.Values+"`", k.Default, k.Meaning)
	}
	r.printf("\n")
}

// option matches a row of the plugin's table: name, argument, meaning.
var option = regexp.MustCompile(`(?m)^\t\{"(bivouac[a-z-]*)", (?:NULL|"([^"]+)"), "([^"]+)", [01],`)

func (r *reference) slurm() {
	src, err := os.ReadFile("../../spank/options.c")
	if err != nil {
		r.t.Fatal(err)
	}
	all := option.FindAllSubmatch(src, -1)
	if n := bytes.Count(src, []byte("{\"bivouac")); n == 0 || len(all) != n {
		r.t.Errorf("read %d of the plugin's %d options", len(all), n)
	}
	r.printf("## Options of jobs\n\nOf `sbatch`, `salloc` and `srun`.\n\n| option | default | meaning |\n|---|---|---|\n")
	for _, o := range all {
		name := "--" + string(o[1])
		if len(o[2]) > 0 {
			name += "=" + string(o[2])
		}
		r.row("`"+name+"`", "none", string(o[3]))
	}
	r.printf("\n")
}

func (r *reference) commands(title, about string, public bool) {
	r.printf("## %s\n\n%s\n\n", title, about)
	c := root()
	c.InitDefaultCompletionCmd()
	if public {
		r.printf("| flag | default | meaning |\n|---|---|---|\n")
		status, _, err := c.Find([]string{"status"})
		if err != nil {
			r.t.Fatal(err)
		}
		for _, name := range common {
			r.flag(status.Flags().Lookup(name))
		}
		r.printf("\n")
	}
	r.command(c, public)
}

// common lists the flags of every command that talks to a daemon; the page lists them once.
var common = []string{"dir", "job", "node"}

func (r *reference) command(c *cobra.Command, public bool) {
	if c.Runnable() && c.Hidden != public {
		asks := c.Flags().Lookup("job") != nil
		mark := ""
		if asks {
			mark = " *"
		}
		r.printf("### %s%s\n\n%s:\n\n    %s\n\n", c.CommandPath(), mark, c.Short, c.UseLine())
		first := true
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" || asks && slices.Contains(common, f.Name) {
				return
			}
			if first {
				r.printf("| flag | default | meaning |\n|---|---|---|\n")
			}
			first = false
			r.flag(f)
		})
		if !first {
			r.printf("\n")
		}
	}
	for _, s := range c.Commands() {
		switch s.Name() {
		case "help":
		case "completion":
			if public {
				r.printf("### %s\n\n%s:\n\n    %s bash|zsh|fish|powershell\n\n", s.CommandPath(), s.Short, s.CommandPath())
			}
		default:
			r.command(s, public)
		}
	}
}

// inUsage matches a default that is stated in the usage text of a flag.
var inUsage = regexp.MustCompile(` \(default: ([^)]*)\)`)

func (r *reference) flag(f *pflag.Flag) {
	name := "`--" + f.Name
	if f.Shorthand != "" {
		name = "`-" + f.Shorthand + "`, " + name
	}
	value := f.DefValue
	if value = strings.Trim(value, "[]"); value == "" {
		value = "none"
	}
	switch f.Value.Type() {
	case "bool":
		value = map[string]string{"false": "off", "true": "on"}[f.DefValue]
	case "duration":
		name += "=TIME"
	case "int", "int64", "uint64":
		name += "=N"
	case "float64":
		name += "=X"
	default:
		name += "=VALUE"
	}
	usage := f.Usage
	if m := inUsage.FindStringSubmatch(usage); m != nil {
		value, usage = m[1], strings.Replace(usage, m[0], "", 1)
	}
	if text, ok := strings.CutSuffix(usage, " (required)"); ok {
		value, usage = "required", text
	}
	r.row(name+"`", value, usage)
}

// described matches the text of a prometheus.Desc, which has no accessors.
var described = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "([^"]*)",(?: unit: "[^"]*",)? constLabels: \{\}, variableLabels: \{(.*?)\}\}$`)

func (r *reference) metrics() {
	r.printf("## Metrics\n\nEach daemon serves them on its control socket. [Monitoring](admin-guide.md#monitoring) says how to read them.\n\n")
	r.printf("| metric | labels | unit | meaning |\n|---|---|---|---|\n")
	for _, d := range daemon.Metrics() {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			r.t.Errorf("cannot read the metric %v", d)
			continue
		}
		r.row("`"+m[1]+"`", strings.ReplaceAll(m[3], ",", ", "), unit(m[1]), m[2])
	}
	r.printf("\nWith `metrics_textfile`, the keeper of a job adds the label `jobid` to each, and these metrics.\n\n")
	r.printf("| metric | labels | unit | meaning |\n|---|---|---|---|\n")
	for _, k := range pitch.KeeperMetrics {
		r.row("`"+k.Name+"`", "jobid", k.Values, k.Meaning)
	}
	r.printf("\n")
}

// unit returns the unit of a metric, by the naming conventions.
func unit(name string) string {
	name = strings.TrimSuffix(name, "_total")
	last := name[strings.LastIndexByte(name, '_')+1:]
	switch {
	case strings.HasSuffix(name, "_bytes_per_second"):
		return "bytes per second"
	case strings.HasSuffix(last, "s"):
		return last
	}
	return "number"
}
