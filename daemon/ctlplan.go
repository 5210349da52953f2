package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/plans"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// maxPlanBody bounds the JSON of an access plan: some 10 million paths.
const maxPlanBody = 1 << 30

// PlanReply answers GET /v1/plan.
type PlanReply struct {
	Plan  *accessplan.Plan `json:"plan"`
	State accessplan.State `json:"state"`
}

// PlanDigest answers PUT /v1/plan.
type PlanDigest struct {
	Digest string `json:"digest"`
}

// planRoutes adds the routes for access plans.
func (c *ctlServer) planRoutes(m *http.ServeMux) {
	m.HandleFunc("PUT /v1/plan", c.putPlan)
	m.HandleFunc("GET /v1/plan", c.getPlan)
	m.HandleFunc("DELETE /v1/plan", c.deletePlan)
	m.HandleFunc("POST /v1/plan/position", c.postPosition)
	m.HandleFunc("POST /v1/map", c.postMap)
}

// readPlan reads a plan from the body of a request.
func readPlan(w http.ResponseWriter, r *http.Request) (p accessplan.Plan, ok bool) {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPlanBody)).Decode(&p); err != nil {
		writeJSON(w, http.StatusBadRequest, CtlError{Error: "access plan: " + err.Error()})
		return p, false
	}
	return p, true
}

func (c *ctlServer) putPlan(w http.ResponseWriter, r *http.Request) {
	p, ok := readPlan(w, r)
	if !ok {
		return
	}
	digest, err := c.d.plans.Set(r.Context(), p)
	writeReply(w, PlanDigest{digest}, err)
}

// getPlan answers with the plan of ?dataset= and the state of the prefetch that follows it.
func (c *ctlServer) getPlan(w http.ResponseWriter, r *http.Request) {
	id, p, err := c.d.plans.Of(r.FormValue("dataset"))
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, PlanReply{p, c.d.plans.State(r.Context(), id)})
}

func (c *ctlServer) deletePlan(w http.ResponseWriter, r *http.Request) {
	writeReply(w, struct{}{}, c.d.plans.Clear(r.Context(), r.FormValue("dataset")))
}

// postPosition records one position of a rank, or a list of positions.
func (c *ctlServer) postPosition(w http.ResponseWriter, r *http.Request) {
	all, ok := readList[accessplan.Position](w, r, "position")
	if !ok {
		return
	}
	writeReply(w, struct{}{}, c.d.plans.Report(all))
}

// postMap answers with the owners of the files, by the numbering of the plan in the body.
func (c *ctlServer) postMap(w http.ResponseWriter, r *http.Request) {
	p, ok := readPlan(w, r)
	if !ok {
		return
	}
	err := p.Check()
	var o plans.OwnerMap
	if err == nil {
		o, err = c.owners(&p)
	}
	writeReply(w, o, err)
}

// owners returns the owner map of the dataset of p.
func (c *ctlServer) owners(p *accessplan.Plan) (plans.OwnerMap, error) {
	ds, err := c.d.plans.Dataset(p.Dataset)
	if err != nil {
		return plans.OwnerMap{}, err
	}
	t, _ := c.d.datasets.Tables.Table(ds.ID)
	files, ok := t.(accessplan.Files)
	if !ok {
		return plans.OwnerMap{}, fmt.Errorf("the tree of dataset %s is not known yet: wait for it with bivouac wait %s: %w", ds.Name, ds.Name, syscall.EAGAIN)
	}
	return plans.Owners(files, p, c.d.View().Map, c.d.job.Self)
}

// Plans returns the access plans of the job.
func (d *Daemon) Plans() *plans.Plans { return d.plans }

// SetPlan makes p the plan of its dataset.
func (c *Ctl) SetPlan(ctx context.Context, p accessplan.Plan) (string, error) {
	var r PlanDigest
	return r.Digest, c.do(ctx, http.MethodPut, "/v1/plan", p, &r)
}

// Plan returns the plan of a dataset, and the state of the prefetch that follows it.
func (c *Ctl) Plan(ctx context.Context, name string) (PlanReply, error) {
	var r PlanReply
	return r, c.do(ctx, http.MethodGet, "/v1/plan?dataset="+url.QueryEscape(name), nil, &r)
}

// ClearPlan removes the plan of a dataset.
func (c *Ctl) ClearPlan(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodDelete, "/v1/plan?dataset="+url.QueryEscape(name), nil, new(struct{}))
}

// Owners returns the owners of the files of p's dataset, by the numbering of p.
func (c *Ctl) Owners(ctx context.Context, p accessplan.Plan) (plans.OwnerMap, error) {
	var o plans.OwnerMap
	return o, c.do(ctx, http.MethodPost, "/v1/map", p, &o)
}
