package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

func TestParticipants(t *testing.T) {
	r := nodetest.NewRegistry(nodetest.View(4))
	r.SetState(1, cluster.Down)
	r.SetState(2, cluster.Leaving)
	if got, want := fmt.Sprint(node.Participants(r.View().Map)), "[0 2 3]"; got != want {
		t.Errorf("Participants = %s, want %s", got, want)
	}
}

func TestUnreachable(t *testing.T) {
	for err, want := range map[error]bool{
		node.ErrNotLeader: true, syscall.EHOSTDOWN: true, syscall.ECONNRESET: true, syscall.EPERM: false, context.Canceled: false,
	} {
		if got := node.Unreachable(fmt.Errorf("call: %w", err)); got != want {
			t.Errorf("Unreachable(%v) = %v, want %v", err, got, want)
		}
	}
}

func TestPause(t *testing.T) {
	if err := node.Pause(context.Background(), time.Microsecond); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := node.Pause(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("Pause with an ended context = %v, want %v", err, context.Canceled)
	}
}

// TestHandle tests the three kinds of handlers: the message is parsed, the sender is known, and a reply is also sent
// along with an error.
func TestHandle(t *testing.T) {
	n := nodetest.New(t, 1, 2)
	n.Serve(node.Handlers{
		wire.OpGetattr: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			if by, ok := node.Asker(ctx); by != 1 || !ok {
				t.Errorf("Asker = %d, %v, want 1, true", by, ok)
			}
			return &wire.InoReq{Ino: q.Ino + 1}, syscall.EEXIST
		}),
		wire.OpReadlink: node.HandleFrom(func(_ context.Context, r *rpc.Request, _ *wire.InoReq) (node.Appender, error) {
			return &wire.InoReq{Ino: metadata.Ino(r.Peer)}, nil
		}),
	})
	var got wire.InoReq
	c := rpc.Call{Op: wire.OpGetattr, Body: &wire.InoReq{Ino: 7}, Reply: &got}
	if err := n.To(1).Do(context.Background(), &c); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("Do = %v, want %v", err, syscall.EEXIST)
	}
	if err := wire.Parse(c.ErrBody, &got); err != nil || got.Ino != 8 {
		t.Errorf("reply %v, %v, want inode 8", got.Ino, err)
	}
	c = rpc.Call{Op: wire.OpReadlink, Body: &wire.InoReq{Ino: 7}, Reply: &got}
	if err := n.To(1).Do(context.Background(), &c); err != nil || got.Ino != 1 {
		t.Errorf("sender %v, %v, want 1", got.Ino, err)
	}
	c.Body = &wire.Raw{1}
	if err := n.To(1).Do(context.Background(), &c); err == nil {
		t.Error("a request that cannot be parsed was answered")
	}
}

type question struct{ N int }

func TestJSON(t *testing.T) {
	ctx, n := context.Background(), nodetest.New(t, 0, 2)
	n.Serve(node.Handlers{wire.OpStatus: node.HandleJSON(func(_ context.Context, by metadata.NodeID, q *question) (question, error) {
		if q.N < 0 {
			return question{}, syscall.EINVAL
		}
		return question{q.N + 1}, nil
	})})
	for what, call := range map[string]func(q, reply any) error{
		"CallJSON": func(q, reply any) error { return node.CallJSON(ctx, n.To(0), wire.OpStatus, q, reply) },
		"Call":     func(q, reply any) error { return n.Call(ctx, 0, wire.OpStatus, q, reply) },
	} {
		var got question
		if err := call(question{1}, &got); err != nil || got.N != 2 {
			t.Errorf("%s = %v, %v, want 2", what, got, err)
		}
		if err := call(question{1}, nil); err != nil {
			t.Errorf("%s without a reply: %v", what, err)
		}
		if err := call(question{-1}, &got); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s = %v, want %v", what, err, syscall.EINVAL)
		}
		if err := call(json.RawMessage(`"x"`), &got); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s of what is no question = %v, want %v", what, err, syscall.EINVAL)
		}
		if err := call(question{1}, new(string)); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s with another reply = %v, want %v", what, err, syscall.EPROTO)
		}
	}
}

func TestAskAll(t *testing.T) {
	r, net := nodetest.NewRegistry(nodetest.View(4)), nodetest.NewNetwork()
	n := nodetest.Join(t, 0, r, net)
	for id := range metadata.NodeID(4) {
		net.Serve(id, node.Handlers{wire.OpStatus: node.HandleJSON(func(_ context.Context, _ metadata.NodeID, q *question) (question, error) {
			return question{q.N + int(id)}, nil
		})})
	}
	net.Cut(1, syscall.ECONNRESET)
	r.SetState(2, cluster.Down)
	got := make(map[string]string)
	node.AskAll(t.Context(), n, wire.OpStatus, question{10}, func(from cluster.Node, a question, err error) {
		got[from.Host] = fmt.Sprintln(a.N, errors.Is(err, syscall.EHOSTDOWN), err == nil)
	})
	want := map[string]string{"node0": "10 false true\n", "node1": "0 false false\n", "node2": "0 true false\n", "node3": "13 false true\n"}
	if !maps.Equal(got, want) {
		t.Errorf("AskAll = %q, want %q", got, want)
	}
}

// TestFollow: do runs again after a pause while work is left, and when the view changes.
func TestFollow(t *testing.T) {
	r := nodetest.NewRegistry(nodetest.View(2))
	ctx, cancel := context.WithCancel(t.Context())
	calls, ended := make(chan int), make(chan struct{})
	go func() {
		defer close(ended)
		n := 0
		node.Follow(ctx, r, time.Nanosecond, time.Nanosecond, func(cluster.View) bool {
			n++
			calls <- n
			return n >= 3
		})
	}()
	for want := range 3 {
		if got := <-calls; got != want+1 {
			t.Fatalf("call %d, want %d", got, want+1)
		}
	}
	r.SetState(1, cluster.Down)
	if got := <-calls; got != 4 {
		t.Errorf("call %d after a change, want 4", got)
	}
	cancel()
	<-ended
}

// TestFakes: the fakes behave as the interfaces specify.
func TestFakes(t *testing.T) {
	ctx, n := context.Background(), nodetest.New(t, 0, 2)
	seen := make(chan error, 1)
	n.Spawn(func(ctx context.Context) {
		seen <- n.Until(ctx, func(v cluster.View) bool { return v.Closing })
	})
	if _, err := n.Propose(ctx, raftstore.Command{Kind: raftstore.KindClosing}); err != nil {
		t.Fatal(err)
	}
	if err := <-seen; err != nil {
		t.Errorf("Until = %v", err)
	}
	if got := n.Proposed(); len(got) != 1 || got[0].Kind != raftstore.KindClosing {
		t.Errorf("Proposed = %v", got)
	}
	tries := 0
	err := n.Insist(ctx, 1, time.Minute, node.Unreachable, func() error {
		if tries++; tries == 3 {
			n.SetState(1, cluster.Down)
		}
		return n.Call(ctx, 1, wire.OpStatus, question{}, nil)
	})
	if !errors.Is(err, syscall.EHOSTDOWN) || tries != 3 {
		t.Errorf("Insist = %v after %d tries, want %v after 3", err, tries, syscall.EHOSTDOWN)
	}
}
