package testcluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	daemonout "github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// TestLeaveWithDeadLeader: when the leader of the control group dies during its leave, the others elect a new one,
// copy the dead node's share, and leave.
func TestLeaveWithDeadLeader(t *testing.T) {
	c, to := outCluster(t, 40)
	var leader int
	Eventually(t, "a leader that has no directory", func() bool {
		leader = int(c.Nodes[3].Status(context.Background()).Leader)
		if leader == 0 { // it has the root of scratch, which must stay; force another leader
			c.Cut(0)
			Eventually(t, "another leads", func() bool { return c.Nodes[3].Status(context.Background()).Leader != 0 })
			c.Mend(0)
		}
		return leader != 0
	})
	Eventually(t, "all are up", func() bool { return len(c.Nodes[leader].View().Map.Up()) == 4 })
	for _, err := range leaveButOne(t, c, leader) {
		if err != nil {
			t.Error(err)
		}
	}
	if n := copied(t, to); n != 40 {
		t.Errorf("%d files were copied, want 40", n)
	}
}

// TestCtlMisuse: each invalid request on the control socket is refused with one clear error, and has no effect.
func TestCtlMisuse(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 1})
	sock := c.Nodes[0].Job.CtlSocket()
	h := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", sock)
	}}}
	for _, q := range []struct {
		path, body string
		want       int
	}{
		{"stage-in", ``, 400},
		{"stage-in", `nonsense`, 400},
		{"stage-in", `{"source":"/x","name":"x","more":1}`, 400},
		{"stage-in", `{"source":"` + strings.Repeat("x", 2<<20) + `"}`, 400},
		{"stage-in", `{"source":"x","name":"x"}`, 400},
		{"stage-in", `{"source":"/x","name":"../x"}`, 400},
		{"stage-in", `{"source":"/x","name":""}`, 400},
		{"stage-out", `{"from":"a","to":"b"}`, 400},
		{"stage-out", `{"from":"../..","to":"/b"}`, 400},
		{"stage-out", `{"from":"","to":"/b"}`, 400},
		{"nothing", `{}`, 404},
	} {
		resp, err := h.Post("http://x/v1/"+q.path, "application/json", strings.NewReader(q.body))
		if err != nil {
			t.Errorf("%s %.50s: %v", q.path, q.body, err)
			continue
		}
		_ = resp.Body.Close() // read only
		if resp.StatusCode != q.want {
			t.Errorf("%s %.50s: %d, want %d", q.path, q.body, resp.StatusCode, q.want)
		}
	}
	if v := c.Nodes[0].View(); len(v.Datasets) != 0 {
		t.Errorf("the registry has %+v", v.Datasets)
	}
}

// TestStageOutGivenUp: when the client of a stage-out disconnects, the stage-out ends on all nodes.
func TestStageOutGivenUp(t *testing.T) {
	c := Start(t, Config{})
	for _, n := range c.Nodes {
		n.Out().SetCopy(func(ctx context.Context, _ daemonout.Share) (r stageout.Result, err error) {
			<-ctx.Done()
			return r, ctx.Err()
		}, nil)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := daemon.NewCtl(c.Nodes[1].Job.CtlSocket()).StageOut(ctx, job.StageOut{From: "x", To: "/nowhere"})
		done <- err
	}()
	for _, n := range c.Nodes {
		Eventually(t, "it runs everywhere", func() bool { return shares(n) == 1 })
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("a stage-out that was given up is no error")
	}
	for _, n := range c.Nodes {
		Eventually(t, "it has ended everywhere", func() bool { return shares(n) == 0 })
	}
}

// TestCloseAtWork: a daemon that is closed while it serves requests, stages in and stages out ends soon, and leaks no
// goroutine.
func TestCloseAtWork(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("job", func(t *testing.T) {
		fsys := newSlowFS()
		close(fsys.gate)
		src := filepath.Join(t.TempDir(), "set.tar")
		writeTar(t, src, files(300, 60_000))
		c := Start(t, Config{Nodes: 3, Source: fsys})
		d, err := c.Nodes[0].Client.Mkdir(context.Background(), metadata.RootIno, "d", metadata.New{Mode: 0o040755})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			put(t, c.Nodes[i%3], d.Ino, fmt.Sprint(i), []byte("x"), metadata.Layout{})
		}
		stop, stopped := make(chan struct{}), make(chan struct{}, 6)
		for i, n := range c.Nodes {
			ctl := daemon.NewCtl(n.Job.CtlSocket())
			if _, err := ctl.StageIn(context.Background(), job.Dataset{Source: src, Name: fmt.Sprint("set", i)}); err != nil {
				t.Fatal(err)
			}
			for _, ask := range []func(){
				func() { _, _ = ctl.Status(context.Background()) },
				func() {
					_, _ = ctl.StageOut(context.Background(), job.StageOut{From: "d", To: filepath.Join(t.TempDir(), "out")})
				},
			} {
				go func() {
					defer func() { stopped <- struct{}{} }()
					for {
						select {
						case <-stop:
							return
						default:
							ask()
						}
					}
				}()
			}
		}
		Eventually(t, "bytes have come in", func() bool { return objects(c.Nodes[0]) > 0 })
		for _, n := range c.Nodes {
			n.stop(t)
		}
		close(stop)
		for range 6 {
			<-stopped
		}
	})
	Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+3 })
	if t.Failed() {
		b := make([]byte, 1<<20)
		t.Logf("%s", b[:runtime.Stack(b, true)])
	}
}

// TestManyDatasets: all datasets are staged, even if there are more than are staged concurrently.
func TestManyDatasets(t *testing.T) {
	t.Parallel()
	src := filepath.Join(t.TempDir(), "set.tar")
	writeTar(t, src, files(20, 5000))
	var specs []job.Dataset
	for i := range 12 {
		specs = append(specs, job.Dataset{Source: src, Name: fmt.Sprint("set", i)})
	}
	c := Start(t, Config{Nodes: 2, Datasets: specs})
	for _, s := range specs {
		if ds := c.Dataset(t, 1, s.Name); ds.Phase != cluster.Sealed {
			t.Errorf("%+v", ds)
		}
	}
}
