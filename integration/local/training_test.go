package local

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/training"
)

// post sends a request to a node's control socket, whose path is in a file of the mount.
func (c *camp) post(node, route, body string) (int, string) {
	c.t.Helper()
	path, err := os.ReadFile(c.node(node, ".bivouac", "control"))
	if err != nil {
		c.t.Fatal(err)
	}
	h := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimSpace(string(path)))
	}}}
	defer h.CloseIdleConnections()
	resp, err := h.Post("http://bivouac"+route, "application/json", strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestTraining: the order of a stage-in becomes the plan of the dataset, and a node's report has the reads of another
// node and the measurements of a rank on a third.
func TestTraining(t *testing.T) {
	t.Parallel()
	c := pitch(t, "3")
	var members []*tar.Header
	for i := range 30 {
		members = append(members, member(fmt.Sprintf("a/%02d.jpg", i), tar.TypeReg))
	}
	write(t, c.path("set.tar"), archive(t, members...))
	write(t, c.path("seeded.tar"), archive(t, members...))
	c.stageIn(c.path("set.tar"))
	c.stageIn(c.path("seeded.tar") + ",order=seed:7,ranks=3")

	for _, m := range append(members, member("good/file", tar.TypeReg)) {
		if _, err := os.ReadFile(c.node("0", "data", "set", m.Name)); err != nil {
			t.Fatal(err)
		}
	}
	for body, want := range map[string]int{
		`{"dataset":"set","rank":4,"epoch":2,"batches":10,"samples":320,"seconds":8,"waited":1,"first_batch":0.5,"by_source":{"local":320}}`: 200,
		`[{"dataset":"set","rank":5,"epoch":2,"batches":10,"samples":320,"seconds":8,"waited":3}]`:                                           200,
		`{"dataset":"none"}`:           404,
		`{"dataset":"set","rank":-1}`:  400,
		`{"dataset":"set","rank":"x"}`: 400,
		`[{"dataset":`:                 400,
	} {
		if got, reply := c.post("1", "/v1/training", body); got != want {
			t.Errorf("POST of %s: %d %s, want %d", body, got, reply, want)
		}
	}

	datasets := func() map[string]*daemon.TrainingStatus {
		m := make(map[string]*daemon.TrainingStatus)
		for _, ds := range c.status("2").Datasets {
			m[ds.Name] = ds.Training
		}
		return m
	}
	// No kernel reads files of other nodes without its daemon.
	remote := int64(0)
	for i, n := range c.status("0").Datasets[0].PerNode {
		if i > 0 {
			remote += n.Files
		}
	}
	eventually(t, "the report has the reads", func() bool {
		s := datasets()["set"]
		return remote > 0 && s != nil && len(s.Epochs) == 2 && s.Epochs[0].Epoch == training.Unknown && s.Epochs[0].Remote.Samples == remote && s.Epochs[0].Waits.Count() >= remote
	})
	s := datasets()["set"]
	if r := s.Epochs[1].Ranks; s.Epochs[1].Epoch != 2 || r == nil || r.Ranks != 2 || r.Samples != 640 || r.Waited != 4 || s.Plan != nil || len(s.Missing) > 0 {
		t.Errorf("training of set is %+v", s)
	}
	eventually(t, "order= is the plan", func() bool {
		s := datasets()["seeded"]
		return s != nil && s.Plan != nil && s.Plan.String() == "seed:7,ranks=3" && s.State != nil && s.State.Digest == s.Plan.Digest()
	})
	if out := c.ok("status", "--dir", c.dir); !strings.Contains(out, "seeded is read in the order of its access plan seed:7,ranks=3") {
		t.Errorf("status has no plan:\n%s", out)
	}
	if out := c.ok("report", "--dir", c.dir, "--node", "2"); !strings.Contains(out, "first read answered") || !strings.Contains(out, "25.0 %") {
		t.Errorf("report has no epochs:\n%s", out)
	}
	if got := c.metric("0", `bivouac_dataset_samples_total{dataset="set",place="remote"}`); int64(got) != remote {
		t.Errorf("metrics of node0 have %v remote samples, want %d", got, remote)
	}
	if got := c.metric("0", `bivouac_plan_followed{dataset="seeded"}`); got != 0 {
		t.Errorf("a plan without readers is followed: %v", got)
	}
	c.checkMonitoring(0)
	var seeded daemon.Status
	if err := json.Unmarshal([]byte(c.ok("report", "--json", "--dir", c.dir)), &seeded); err != nil || seeded.Datasets[1].Training == nil {
		t.Errorf("report --json: %v, %+v", err, seeded)
	}
}
