package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

const patience = 200 * time.Millisecond

// echo is a kind of task that returns its own request.
type echo struct {
	Text  string             `json:"text"`
	Group metadata.DatasetID `json:"group,omitempty"`
	Fail  bool               `json:"fail,omitempty"`
	Hang  bool               `json:"hang,omitempty"`
}

// job returns n nodes that know the kind echo.
func job(t *testing.T, n int) (runners []*tasks.Runner, r *nodetest.Registry, net *nodetest.Network) {
	t.Helper()
	r, net = nodetest.NewRegistry(nodetest.View(n)), nodetest.NewNetwork()
	for i := range n {
		x := nodetest.Join(t, metadata.NodeID(i), r, net)
		run := tasks.New(x, patience)
		run.Register("echo", tasks.KindOf(prepareEcho))
		x.Serve(run.Handlers())
		runners = append(runners, run)
	}
	return runners, r, net
}

func prepareEcho(from metadata.NodeID, q *echo) (tasks.Task, error) {
	if q.Text == "bad" {
		return tasks.Task{}, syscall.EINVAL
	}
	var over atomic.Bool
	return tasks.Task{
		Group: q.Group,
		Run: func(ctx context.Context) error {
			defer over.Store(true)
			if q.Hang {
				<-ctx.Done()
				return ctx.Err()
			}
			if q.Fail {
				return fmt.Errorf("%s: %w", q.Text, syscall.EIO)
			}
			return nil
		},
		Detail: func(full bool) any {
			if !over.Load() {
				return nil
			}
			return fmt.Sprintf("%s from %d, full %v", q.Text, from, full)
		},
	}, nil
}

func request(t *testing.T, id string, e echo) tasks.Request {
	t.Helper()
	q, err := tasks.NewRequest(id, "echo", e)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestRun(t *testing.T) {
	runners, _, _ := job(t, 2)
	var last tasks.State
	see := func(s tasks.State) { last = s }
	if err := runners[0].Run(t.Context(), 1, request(t, "a", echo{Text: "hello"}), see); err != nil {
		t.Fatal(err)
	}
	var got string
	if ok, err := last.Decode(&got); !ok || err != nil || got != "hello from 0, full false" {
		t.Errorf("detail = %q, %v, %v", got, ok, err)
	}
	if err := runners[0].Watch(t.Context(), 1, "a", func() bool { return true }, see); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Decode(&got); err != nil || got != "hello from 0, full true" {
		t.Errorf("full detail = %q, %v", got, err)
	}
	err := runners[0].Run(t.Context(), 0, request(t, "b", echo{Text: "disk", Fail: true}), see)
	if err == nil || err.Error() != "disk: input/output error" {
		t.Errorf("a task that fails: %v", err)
	}
	for _, r := range runners {
		r.Wait()
		if n := r.Running(); n != 0 {
			t.Errorf("%d tasks run after the end", n)
		}
	}
}

func TestRefused(t *testing.T) {
	runners, _, _ := job(t, 2)
	ok := request(t, "a", echo{Text: "x"})
	if err := runners[0].Start(t.Context(), 1, ok); err != nil {
		t.Fatal(err)
	}
	long := request(t, strings.Repeat("x", 200), echo{})
	for name, c := range map[string]struct {
		q    tasks.Request
		want syscall.Errno
	}{
		"twice":        {ok, syscall.EEXIST},
		"no ID":        {tasks.Request{Kind: "echo", Body: ok.Body}, syscall.EINVAL},
		"a long ID":    {long, syscall.EINVAL},
		"unknown kind": {tasks.Request{ID: "b", Kind: "none"}, syscall.EINVAL},
		"no JSON":      {tasks.Request{ID: "b", Kind: "echo", Body: []byte("{")}, syscall.EINVAL},
		"bad request":  {request(t, "b", echo{Text: "bad"}), syscall.EINVAL},
	} {
		if err := runners[0].Start(t.Context(), 1, c.q); err == nil || name != "no JSON" && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if err := runners[0].Watch(t.Context(), 1, "unknown", nil, func(tasks.State) {}); !errors.Is(err, tasks.ErrRestarted) {
		t.Errorf("a task that was never started: %v", err)
	}
}

func TestTooMany(t *testing.T) {
	runners, _, _ := job(t, 1)
	var err error
	for i := 0; err == nil && i < 2000; i++ {
		err = runners[0].Start(t.Context(), 0, request(t, fmt.Sprint(i), echo{Hang: true}))
	}
	if !errors.Is(err, syscall.EBUSY) || runners[0].Running() != 512 {
		t.Errorf("%d tasks, %v, want 512 and EBUSY", runners[0].Running(), err)
	}
}

// TestOldResultsAreForgotten starts more tasks than there are results kept.
func TestOldResultsAreForgotten(t *testing.T) {
	runners, _, _ := job(t, 1)
	r := runners[0]
	for i := range 1100 {
		if err := r.Start(t.Context(), 0, request(t, fmt.Sprint(i), echo{})); err != nil {
			t.Fatal(err)
		}
		r.Wait()
	}
	see := func(tasks.State) {}
	if err := r.Watch(t.Context(), 0, "0", nil, see); !errors.Is(err, tasks.ErrRestarted) {
		t.Errorf("the first result: %v, want it to be forgotten", err)
	}
	if err := r.Watch(t.Context(), 0, "1099", nil, see); err != nil {
		t.Errorf("the last result: %v", err)
	}
}

func TestGroups(t *testing.T) {
	runners, _, _ := job(t, 2)
	r := runners[1]
	start := func(id string, g metadata.DatasetID) error {
		return runners[0].Start(t.Context(), 1, request(t, id, echo{Hang: true, Group: g}))
	}
	if err := errors.Join(start("a", 7), start("b", 7), start("c", 8), start("d", 0)); err != nil {
		t.Fatal(err)
	}
	runners[0].Abandon(1, "a") // ends a task of the group, too
	if n := r.Running(); n != 4 {
		t.Errorf("%d tasks run, want 4", n)
	}
	if err := r.CloseGroup(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	if err := start("e", 7); !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("a task of a closed group: %v, want ECANCELED", err)
	}
	r.CancelGroup(8)
	runners[0].Abandon(1, "d")
	r.Wait()
	if err := start("f", 8); err != nil {
		t.Errorf("a task of a cancelled group: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.CloseGroup(ctx, 8); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestLostNode(t *testing.T) {
	runners, r, net := job(t, 2)
	see := func(tasks.State) {}
	if err := runners[0].Start(t.Context(), 1, request(t, "a", echo{Hang: true})); err != nil {
		t.Fatal(err)
	}
	net.Cut(1, syscall.EHOSTDOWN)
	if err := runners[0].Watch(t.Context(), 1, "a", nil, see); !errors.Is(err, syscall.EHOSTDOWN) || errors.Is(err, tasks.ErrNodeLost) {
		t.Errorf("a node that does not answer for long: %v", err)
	}
	r.SetState(1, cluster.Down)
	if err := runners[0].Watch(t.Context(), 1, "a", nil, see); !errors.Is(err, tasks.ErrNodeLost) {
		t.Errorf("a node that is down: %v, want %v", err, tasks.ErrNodeLost)
	}
	runners[0].Abandon(1, "a") // logs that it cannot abandon it
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := runners[0].Watch(ctx, 1, "a", nil, see); !errors.Is(err, context.Canceled) {
		t.Errorf("Watch with an ended context = %v", err)
	}
}

func TestRunAll(t *testing.T) {
	runners, r, net := job(t, 3)
	r.SetState(2, cluster.Down)
	var mu sync.Mutex
	got := make(map[metadata.NodeID]string)
	see := func(id metadata.NodeID, s tasks.State) {
		mu.Lock()
		defer mu.Unlock()
		var text string
		if ok, _ := s.Decode(&text); ok {
			got[id] = text
		}
	}
	if err := runners[0].RunAll(t.Context(), request(t, "a", echo{Text: "all"}), see); err != nil || len(got) != 2 {
		t.Errorf("%v of %v", err, got)
	}
	err := runners[0].RunAll(t.Context(), request(t, "b", echo{Text: "disk", Fail: true}), see)
	if err == nil || !strings.HasPrefix(err.Error(), "node") {
		t.Errorf("RunAll = %v, want the host that failed", err)
	}
	net.Cut(1, syscall.EHOSTDOWN)
	time.AfterFunc(patience/4, func() { r.SetState(1, cluster.Down) })
	err = runners[0].RunAll(t.Context(), request(t, "c", echo{}), see)
	if err == nil || !strings.Contains(err.Error(), "repeat the command") {
		t.Errorf("RunAll with a node that is lost = %v", err)
	}
}

// TestStartIsRepeated: the reply to the first start is lost, and the start is repeated.
func TestStartIsRepeated(t *testing.T) {
	runners, r, net := job(t, 2)
	x := nodetest.Join(t, 1, r, net)
	h := runners[1].Handlers()
	first, lost := h[wire.OpTask], false
	h[wire.OpTask] = func(ctx context.Context, q *rpc.Request, resp *rpc.Response) error {
		err := first(ctx, q, resp)
		if !lost {
			lost, err = true, syscall.ECONNRESET
		}
		return err
	}
	x.Serve(h)
	if err := runners[0].Start(t.Context(), 1, request(t, "a", echo{})); err != nil || !lost {
		t.Errorf("Start = %v, %v", err, lost)
	}
}
