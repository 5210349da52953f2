package node

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Handlers is one part's table of handlers.
type Handlers = map[wire.Op]rpc.Handler

// Parser is a pointer to a T that can parse itself from a frame.
type Parser[T any] interface {
	*T
	wire.Message
}

// Appender is a message that can append itself to a frame.
type Appender = wire.Message

// Handle returns the handler of a function on messages. With an error it still sends the reply: Create's EEXIST carries
// the existing entry. The function's context names the caller (Asker).
func Handle[T any, P Parser[T]](f func(ctx context.Context, q *T) (Appender, error)) rpc.Handler {
	return HandleFrom[T, P](func(ctx context.Context, _ *rpc.Request, q *T) (Appender, error) { return f(ctx, q) })
}

// HandleFrom is Handle for a function that needs the request itself, for example its sender.
func HandleFrom[T any, P Parser[T]](f func(ctx context.Context, r *rpc.Request, q *T) (Appender, error)) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		var q T
		if err := wire.Parse(r.Body, P(&q)); err != nil {
			return err
		}
		var err error
		resp.Body, err = f(&asker{ctx, r.Peer}, r, &q)
		return err
	}
}

// HandleJSON returns the handler of a function on JSON messages.
func HandleJSON[Q, R any](f func(ctx context.Context, peer metadata.NodeID, q *Q) (R, error)) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		var q Q
		if err := json.Unmarshal(r.Body, &q); err != nil {
			return fmt.Errorf("%v: %v: %w", r.Op, err, syscall.EINVAL)
		}
		a, err := f(ctx, r.Peer, &q)
		if err != nil {
			return err
		}
		resp.Body = &wire.JSON{V: a}
		return nil
	}
}

// CallJSON calls a handler of HandleJSON. A nil reply is not decoded.
func CallJSON(ctx context.Context, c rpc.Caller, op wire.Op, q, reply any) error {
	call := rpc.Call{Op: op, Body: &wire.JSON{V: q}}
	if reply != nil {
		call.Reply = &wire.JSON{V: reply}
	}
	return c.Do(ctx, &call)
}

// askAtOnce is how many nodes AskAll calls concurrently.
const askAtOnce = 64

// AskAll makes the same call to all nodes of the job, and calls take with the answer or error of each, one at a time. A
// node that does not serve is not called: EHOSTDOWN.
func AskAll[R any](ctx context.Context, n Node, op wire.Op, q any, take func(from cluster.Node, r R, err error)) {
	var mu sync.Mutex // held while take runs
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for _, to := range n.View().Map.Nodes {
		g.Go(func() error {
			var r R
			err := error(syscall.EHOSTDOWN)
			if Serving(to) {
				err = n.Call(ctx, to.ID, op, q, &r)
			}
			mu.Lock()
			defer mu.Unlock()
			take(to, r, err)
			return nil
		})
	}
	_ = g.Wait() // no function fails
}

// DecodeJSON is json.Unmarshal that returns EPROTO.
func DecodeJSON(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%v: %w", err, syscall.EPROTO)
	}
	return nil
}

// asker is the context of a request from another node.
type asker struct {
	context.Context
	peer metadata.NodeID
}

type askerKey struct{}

// Value implements context.Context.
func (a *asker) Value(key any) any {
	if key == (askerKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// Asker returns the node whose request ctx belongs to; false if this node's own client makes the request.
func Asker(ctx context.Context) (metadata.NodeID, bool) {
	if a, ok := ctx.Value(askerKey{}).(*asker); ok {
		return a.peer, true
	}
	return 0, false
}
