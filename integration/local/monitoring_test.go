package local

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/bivouacfs/bivouac/daemon"
)

// monitored maps each metric in a site's Prometheus to its labels. The keeper's own are tested in deploy/pitch.
type monitored map[string][]string

var series = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? \S+$`)

// metricsOf reads the metrics of a node, and checks their names.
func (c *camp) metricsOf(node int) monitored {
	c.t.Helper()
	text, err := daemon.NewCtl(c.state().Nodes[node].Sock).Metrics(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	all := monitored{"bivouac_daemon_up": nil, "bivouac_daemon_restarts_total": nil, "node_textfile_mtime_seconds": {"file"}}
	for _, m := range series.FindAllStringSubmatch(text, -1) {
		for _, l := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(m[2], -1) {
			all[m[1]] = append(all[m[1]], l[1])
		}
		all[m[1]] = append(all[m[1]], "jobid", "instance")
	}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(text, -1) {
		if name, kind := m[1], m[2]; (kind == "counter") != strings.HasSuffix(name, "_total") || kind == "histogram" && !strings.HasSuffix(name, "_seconds") {
			c.t.Errorf("%s is a %s: the name does not say so", name, kind)
		}
	}
	return all
}

// check checks that every metric and label of an expression exists.
func (all monitored) check(t *testing.T, where, expr string) {
	t.Helper()
	names := regexp.MustCompile(`\b(?:bivouac|node)_[a-z_]+`).FindAllString(expr, -1)
	labels := []string{"jobid", "instance"}
	for _, name := range names {
		if _, ok := all[name]; !ok {
			t.Errorf("%s: no metric %s", where, name)
		}
		labels = append(labels, all[name]...)
	}
	for _, m := range regexp.MustCompile(`by \(([a-z, ]+)\)|\{([a-z]+)=`).FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1]+m[2], ", ") {
			if !slices.Contains(labels, l) {
				t.Errorf("%s: %q has no label %s", where, names, l)
			}
		}
	}
	if len(names) == 0 || strings.Count(expr, "(") != strings.Count(expr, ")") || strings.Count(expr, "{") != strings.Count(expr, "}") {
		t.Errorf("%s: bad expression %q", where, expr)
	}
}

// checkMonitoring compares the example alerts and the dashboard with the metrics of a node.
func (c *camp) checkMonitoring(node int) {
	c.t.Helper()
	all := c.metricsOf(node)
	var alerts struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	read(c.t, "alerts.yaml", yaml.Unmarshal, &alerts)
	for _, r := range alerts.Groups[0].Rules {
		all.check(c.t, r.Alert, r.Expr)
	}
	var board dashboard
	read(c.t, "dashboard.json", parseDashboard, &board)
	for _, p := range board.Panels {
		for _, x := range p.Targets {
			all.check(c.t, p.Title, x.Expr)
			if !strings.Contains(x.Expr, `jobid=~"$jobid"`) {
				c.t.Errorf("%s: %q is of all jobs", p.Title, x.Expr)
			}
		}
	}
}

func read(t *testing.T, name string, parse func([]byte, any) error, to any) {
	t.Helper()
	b, err := os.ReadFile("../../deploy/monitoring/" + name)
	if err == nil {
		err = parse(b, to)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
