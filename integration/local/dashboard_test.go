package local

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
)

// dashboard is the part of Grafana's schema of dashboards (the types of @grafana/schema 13.2: Dashboard, Panel,
// VariableModel, DataQuery, and the options of stat and timeseries) that ours uses. Unknown fields are rejected.
type dashboard struct {
	Title, UID             string
	Tags                   []string
	SchemaVersion, Version int // Grafana migrates dashboards of an older schema
	Editable               bool
	Refresh                string
	Time                   struct{ From, To string }
	Templating             struct{ List []variable }
	Panels                 []panel
}

type dataSource struct{ Type, UID string }

type variable struct {
	Name, Label, Type string
	Datasource        *dataSource
	Query             any // a string, or an object of the data source
	Refresh, Sort     int
	Multi, IncludeAll bool
}

type grid struct{ X, Y, W, H int }

type panel struct {
	ID                       int
	Title, Description, Type string
	Datasource               dataSource
	GridPos                  grid
	FieldConfig              struct {
		Defaults struct {
			Unit     string
			Min, Max *float64
		}
		Overrides []any // required
	}
	Options struct {
		ReduceOptions *struct{ Calcs []string } // stat
		Legend        *struct {                 // timeseries
			Calcs                  []string
			DisplayMode, Placement string
			ShowLegend             bool
		}
	}
	Targets []query
}

type query struct {
	RefID, Expr, LegendFormat string
	Datasource                dataSource
}

// parseDashboard rejects unknown fields.
func parseDashboard(b []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(to)
}

// TestDashboard checks the dashboard against Grafana's schema; another test checks its metrics.
func TestDashboard(t *testing.T) {
	t.Parallel()
	var d dashboard
	read(t, "dashboard.json", parseDashboard, &d)
	if d.Title == "" || d.UID == "" || d.SchemaVersion < 36 || len(d.Templating.List) != 2 || len(d.Panels) == 0 {
		t.Errorf("the dashboard is %+v", d)
	}
	for _, v := range d.Templating.List {
		if v.Name == "" || !slices.Contains([]string{"datasource", "query"}, v.Type) || v.Query == nil || v.Refresh < 0 || v.Refresh > 2 || v.Sort < 0 || v.Sort > 8 {
			t.Errorf("variable %+v", v)
		}
	}
	source := dataSource{"prometheus", "${datasource}"}
	for i, p := range d.Panels {
		g := p.GridPos
		if p.ID != i+1 || p.Title == "" || p.FieldConfig.Defaults.Unit == "" || p.FieldConfig.Overrides == nil || p.Datasource != source || g.X < 0 || g.W < 1 || g.H < 1 || g.X+g.W > 24 {
			t.Errorf("panel %+v", p)
		}
		stat, legend := p.Options.ReduceOptions, p.Options.Legend
		switch {
		case p.Type == "stat" && stat != nil && len(stat.Calcs) > 0 && legend == nil:
		case p.Type == "timeseries" && stat == nil && legend != nil && legend.Calcs != nil && legend.ShowLegend &&
			slices.Contains([]string{"list", "table"}, legend.DisplayMode) && slices.Contains([]string{"bottom", "right"}, legend.Placement):
		default:
			t.Errorf("panel %q of type %q has the options %+v %+v", p.Title, p.Type, stat, legend)
		}
		for _, o := range d.Panels[:i] {
			if o := o.GridPos; g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H {
				t.Errorf("the panel %q overlaps another", p.Title)
			}
		}
		refs := make(map[string]bool)
		for _, q := range p.Targets {
			if q.RefID == "" || refs[q.RefID] || q.Expr == "" || q.Datasource != source {
				t.Errorf("panel %q has the query %+v", p.Title, q)
			}
			refs[q.RefID] = true
		}
	}
}
