package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// ctlServer serves the control socket: HTTP with JSON over a Unix socket of mode 0600 in the job user's own directory.
// Whoever can open the socket may use it.
type ctlServer struct {
	d    *Daemon
	srv  *http.Server
	done chan struct{}
	busy sync.WaitGroup // requests that are being answered

	mu     sync.Mutex
	closed bool // guarded by mu
}

// close waits until all requests have been answered; http.Server.Close does not wait for them.
func (c *ctlServer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	_ = c.srv.Close()
	<-c.done
	c.busy.Wait()
}

func (c *ctlServer) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.busy.Add(1)
	}
	return !c.closed
}

// counted serves requests with h as long as the server is open.
func (c *ctlServer) counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !c.begin() {
			writeJSON(w, http.StatusServiceUnavailable, CtlError{Error: "the daemon is stopping"})
			return
		}
		defer c.busy.Done()
		h.ServeHTTP(w, r)
	})
}

// CtlError is the body of an answer other than 200.
type CtlError struct {
	Error string `json:"error"`
}

// StageInReply answers POST /v1/stage-in.
type StageInReply struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Name    string             `json:"name"`
}

// StageOutReply answers POST /v1/stage-out.
type StageOutReply struct {
	Result stageout.Result `json:"result"`
}

func (d *Daemon) serveCtl() (*ctlServer, error) {
	path := d.job.CtlSocket()
	if err := os.MkdirAll(d.job.Dirs.Run, 0o700); err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	c := &ctlServer{d: d, done: make(chan struct{})}
	c.srv = &http.Server{
		Handler: c.counted(c.routes()), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return d.ctx }, // a request ends with the daemon
	}
	go func() {
		defer close(c.done)
		if err := c.srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.log.WithError(err).Error("control socket failed: bivouac commands cannot reach this daemon until it is restarted")
		}
	}()
	return c, nil
}

func (c *ctlServer) routes() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("fresh") != "" {
			if err := c.d.Refresh(r.Context()); err != nil {
				writeError(w, err)
				return
			}
		}
		s := c.d.Status(r.Context())
		if r.FormValue("training") != "" {
			c.addTraining(r.Context(), &s)
		}
		writeJSON(w, http.StatusOK, s)
	})
	c.planRoutes(m)
	m.HandleFunc("POST /v1/training", c.postTraining)
	m.HandleFunc("POST /v1/stage-in", answer(c.stageIn))
	m.HandleFunc("POST /v1/remove", answer(c.remove))
	m.HandleFunc("GET /v1/skips", c.getSkips)
	m.HandleFunc("POST /v1/verify", answer(c.verify))
	m.HandleFunc("GET /v1/sums", c.getSums)
	m.HandleFunc("POST /v1/check", c.postCheck)
	m.HandleFunc("POST /v1/stage-out", answer(c.stageOut))
	m.HandleFunc("POST /v1/output", answer(c.setOutput))
	m.Handle("GET /metrics", promhttp.HandlerFor(c.d.registry(), promhttp.HandlerOpts{EnableOpenMetrics: true}))
	m.HandleFunc("GET /debug/pprof/", pprof.Index)
	m.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	m.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return m
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller has gone away
}

// writeReply answers with v, or with err if it is not nil.
func writeReply(w http.ResponseWriter, v any, err error) {
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, v)
}

func writeError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, syscall.EEXIST):
		status = http.StatusConflict
	case errors.Is(err, syscall.ENOENT):
		status = http.StatusNotFound
	case errors.Is(err, syscall.EINVAL):
		status = http.StatusBadRequest
	}
	writeJSON(w, status, CtlError{Error: node.ErrorText(err)})
}

func readJSON(w http.ResponseWriter, r *http.Request, v any) bool {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		writeJSON(w, http.StatusBadRequest, CtlError{Error: err.Error()})
		return false
	}
	return true
}

// answer returns the handler of a request of type T, which f answers.
func answer[T any](f func(context.Context, T) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q T
		if readJSON(w, r, &q) {
			v, err := f(r.Context(), q)
			writeReply(w, v, err)
		}
	}
}

// readList reads a list of T, or one T; what names the values in an error.
func readList[T any](w http.ResponseWriter, r *http.Request, what string) (all []T, ok bool) {
	var body json.RawMessage
	if !readJSON(w, r, &body) {
		return nil, false
	}
	if json.Unmarshal(body, &all) == nil {
		return all, true
	}
	var one T
	if err := json.Unmarshal(body, &one); err != nil {
		writeJSON(w, http.StatusBadRequest, CtlError{Error: what + ": " + err.Error()})
		return nil, false
	}
	return []T{one}, true
}

// stageIn registers a dataset and starts to stage it in; it does not wait.
func (c *ctlServer) stageIn(ctx context.Context, s job.Dataset) (any, error) {
	x, err := c.d.stager.Begin(ctx, s)
	if err != nil {
		return nil, err
	}
	x.Start()
	ds := x.Dataset()
	return StageInReply{Dataset: ds.ID, Name: ds.Name}, nil
}

// RemoveRequest asks POST /v1/remove to end a dataset.
type RemoveRequest struct {
	Name   string `json:"name"`
	Cancel bool   `json:"cancel,omitempty"` // only while it is being staged
}

// remove ends the active dataset with a name. Its space is freed soon after.
func (c *ctlServer) remove(ctx context.Context, q RemoveRequest) (any, error) {
	d := c.d
	if err := d.Refresh(ctx); err != nil {
		return nil, err
	}
	all := cluster.Current(d.View().Datasets)
	i := slices.IndexFunc(all, func(ds cluster.Dataset) bool { return ds.Name == q.Name })
	if i < 0 {
		return nil, dataset.Unknown(q.Name, all)
	}
	ds := cluster.Dataset{ID: all[i].ID, Phase: cluster.Removed, Error: "removed by bivouac remove"}
	if q.Cancel {
		if all[i].Phase.Ended() || all[i].Phase == cluster.Sealed {
			return nil, fmt.Errorf("%s is not being staged: bivouac remove %s removes it: %w", q.Name, q.Name, syscall.EINVAL)
		}
		ds.Phase, ds.Error = cluster.Failed, "cancelled by bivouac cancel"
	}
	if _, err := d.Propose(ctx, raftstore.Command{Kind: raftstore.KindRemoveDataset, Dataset: ds}); err != nil {
		return nil, fmt.Errorf("%s: %w", q.Name, err)
	}
	return struct{}{}, nil
}

// getSkips answers GET /v1/skips?name=N with the entries that the dataset N leaves out, one line of JSON each.
func (c *ctlServer) getSkips(w http.ResponseWriter, r *http.Request) {
	ds, ok := c.d.View().Active(r.FormValue("name"))
	if !ok {
		writeError(w, dataset.Unknown(r.FormValue("name"), cluster.Current(c.d.View().Datasets)))
		return
	}
	path, err := c.d.datasets.Files.Skips(r.Context(), ds)
	if err != nil {
		writeError(w, err)
		return
	}
	f, err := os.Open(path)
	if err != nil {
		writeError(w, err)
		return
	}
	defer f.Close() // read only
	w.Header().Set("Content-Type", "application/jsonl")
	_, _ = io.Copy(w, f) // the caller has gone away
}

// verify has all nodes verify a dataset, and waits.
func (c *ctlServer) verify(ctx context.Context, s dataset.VerifySpec) (any, error) {
	return c.d.datasets.Verifier.Verify(ctx, s)
}

// getSums answers GET /v1/sums?name=N with the SHA-256 of the files of N, node after node, as written by the last
// verification that listed them.
func (c *ctlServer) getSums(w http.ResponseWriter, r *http.Request) {
	paths, err := c.d.datasets.Verifier.Sums(r.Context(), r.FormValue("name"))
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	for _, path := range paths {
		if err := copyFile(w, path); err != nil {
			c.d.log.WithError(err).Warn("list of checksums cannot be read: the reply is cut off")
			panic(http.ErrAbortHandler) // half a list must not look complete
		}
	}
}

func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // read only
	_, err = io.Copy(w, f)
	return err
}

// stageOut has all nodes copy a directory of scratch out, and waits.
func (c *ctlServer) stageOut(ctx context.Context, o job.StageOut) (any, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	res, err := c.d.out.All(ctx, o)
	return StageOutReply{Result: res}, err
}

// setOutput sets the file of the job's output.
func (c *ctlServer) setOutput(_ context.Context, o stageout.Output) (any, error) {
	return struct{}{}, c.d.notifier.SetOutput(o)
}

// postCheck checks the live realm, and waits.
func (c *ctlServer) postCheck(w http.ResponseWriter, r *http.Request) {
	res, err := c.d.home.Check(r.Context())
	writeReply(w, res, err)
}
