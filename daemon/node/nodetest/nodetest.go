// Package nodetest has fakes of the interfaces of package node, for tests of a daemon's parts without a cluster: a
// registry that applies commands at once, and a network that runs the handlers of other nodes directly.
package nodetest

import (
	"context"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

var (
	_ node.Registry = (*Registry)(nil)
	_ node.Caller   = (*Caller)(nil)
	_ node.Process  = (*Process)(nil)
	_ node.Node     = (*Node)(nil)
)

// Hosts returns n host names: node0, node1, …
func Hosts(n int) []string {
	hosts := make([]string, n)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("node%d", i)
	}
	return hosts
}

// View returns a view of n nodes that are Up.
func View(n int) cluster.View {
	v := cluster.View{Version: 1, Map: cluster.NewMap(1, Hosts(n))}
	for i := range n {
		v.Map = v.Map.WithState(metadata.NodeID(i), cluster.Up, fmt.Sprintf("node%d:7070", i))
	}
	return v
}

// Registry is a node.Registry that applies proposals at once.
type Registry struct {
	// Refuse, if set, is called before a command applies; its error refuses the command.
	Refuse func(raftstore.Command) error

	mu       sync.Mutex
	view     cluster.View        // guarded by mu
	changed  chan struct{}       // guarded by mu; closed when view changes
	proposed []raftstore.Command // guarded by mu
}

// NewRegistry returns a registry that begins with v.
func NewRegistry(v cluster.View) *Registry { return &Registry{view: v, changed: make(chan struct{})} }

// View implements node.Registry.
func (r *Registry) View() cluster.View {
	v, _ := r.Watch()
	return v
}

// Watch implements node.Registry.
func (r *Registry) Watch() (cluster.View, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view, r.changed
}

// Until implements node.Registry.
func (r *Registry) Until(ctx context.Context, ok func(cluster.View) bool) error {
	for {
		v, changed := r.Watch()
		if ok(v) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// Refresh implements node.Registry: the view is always the leader's.
func (r *Registry) Refresh(ctx context.Context) error { return ctx.Err() }

// Propose implements node.Registry.
func (r *Registry) Propose(ctx context.Context, c raftstore.Command) (cluster.View, error) {
	if err := ctx.Err(); err != nil {
		return r.View(), err
	}
	if r.Refuse != nil {
		if err := r.Refuse(c); err != nil {
			return r.View(), err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := raftstore.Apply(r.view, c)
	if err != nil {
		return r.view, err
	}
	r.proposed = append(r.proposed, c)
	r.setLocked(v)
	return r.view, nil
}

// Proposed returns the commands that have been applied.
func (r *Registry) Proposed() []raftstore.Command {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]raftstore.Command(nil), r.proposed...)
}

// Change replaces the view by the result of f, with the next version.
func (r *Registry) Change(f func(cluster.View) cluster.View) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setLocked(f(r.view))
}

// SetState sets the state of a node to s.
func (r *Registry) SetState(id metadata.NodeID, s cluster.State) {
	r.Change(func(v cluster.View) cluster.View {
		n, _ := v.Map.Node(id)
		v.Map = v.Map.WithState(id, s, n.Addr)
		return v
	})
}

func (r *Registry) setLocked(v cluster.View) {
	v.Version = r.view.Version + 1
	r.view = v
	close(r.changed)
	r.changed = make(chan struct{})
}

// Network connects nodes whose handlers are called directly.
type Network struct {
	mu     sync.Mutex
	tables map[metadata.NodeID]node.Handlers // guarded by mu
	cut    map[metadata.NodeID]error         // guarded by mu
	calls  []wire.Op                         // guarded by mu
}

// NewNetwork returns a network on which no node answers yet.
func NewNetwork() *Network {
	return &Network{tables: make(map[metadata.NodeID]node.Handlers), cut: make(map[metadata.NodeID]error)}
}

// Serve adds handlers to those of node id.
func (n *Network) Serve(id metadata.NodeID, table node.Handlers) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tables[id] == nil {
		n.tables[id] = make(node.Handlers)
	}
	for op, h := range table {
		n.tables[id][op] = h
	}
}

// Cut makes all calls to node id fail with err; nil restores the connection.
func (n *Network) Cut(id metadata.NodeID, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[id] = err
}

// Calls returns the ops of all calls, in order, including failed calls.
func (n *Network) Calls() []wire.Op {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]wire.Op(nil), n.calls...)
}

func (n *Network) handler(id metadata.NodeID, op wire.Op) (rpc.Handler, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, op)
	if err := n.cut[id]; err != nil {
		return nil, err
	}
	h, ok := n.tables[id][op]
	if !ok {
		return nil, fmt.Errorf("node %d: %v: %w", id, op, syscall.EHOSTDOWN)
	}
	return h, nil
}

// Caller is a node.Caller on a Network.
type Caller struct {
	self     metadata.NodeID
	net      *Network
	registry node.Registry
}

// Self implements node.Caller.
func (c *Caller) Self() metadata.NodeID { return c.self }

// To implements node.Caller.
func (c *Caller) To(id metadata.NodeID) rpc.Caller { return link{c, id} }

// Call implements node.Caller.
func (c *Caller) Call(ctx context.Context, id metadata.NodeID, op wire.Op, q, reply any) error {
	return node.CallJSON(ctx, c.To(id), op, q, reply)
}

// Insist implements node.Caller. It does not pause between tries.
func (c *Caller) Insist(ctx context.Context, id metadata.NodeID, patience time.Duration, retry func(error) bool, fn func() error) error {
	for end := time.Now().Add(patience); ; {
		err := fn()
		n, _ := c.registry.View().Map.Node(id)
		if err == nil || !retry(err) || !node.Serving(n) || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

// link is the connection from a node to another.
type link struct {
	from *Caller
	to   metadata.NodeID
}

// Do runs the other node's handler.
func (l link) Do(ctx context.Context, c *rpc.Call) error {
	h, err := l.from.net.handler(l.to, c.Op)
	if err != nil {
		return err
	}
	return rpc.Local(ctx, h, l.from.self, l.from.registry.View().Map.Epoch, c)
}

// Process is a node.Process that lives as long as a test.
type Process struct {
	ctx context.Context
	wg  sync.WaitGroup
	log *logrus.Entry

	mu     sync.Mutex
	nudges int // guarded by mu
}

// NewProcess returns a process that ends with t.
func NewProcess(t testing.TB) *Process {
	ctx, cancel := context.WithCancel(context.Background())
	l := logrus.New()
	l.SetOutput(io.Discard)
	p := &Process{ctx: ctx, log: logrus.NewEntry(l)}
	t.Cleanup(func() {
		cancel()
		p.wg.Wait()
	})
	return p
}

// Spawn implements node.Process.
func (p *Process) Spawn(f func(context.Context)) {
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		f(p.ctx)
	}()
}

// Nudge implements node.Process.
func (p *Process) Nudge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nudges++
}

// Nudges returns how often Nudge was called.
func (p *Process) Nudges() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nudges
}

// Log implements node.Process.
func (p *Process) Log() *logrus.Entry { return p.log }

// Node is a node of a fake job.
type Node struct {
	*Registry
	*Caller
	*Process
}

// New returns node self of a job of n nodes that are Up, alone on its network.
func New(t testing.TB, self metadata.NodeID, n int) *Node {
	return Join(t, self, NewRegistry(View(n)), NewNetwork())
}

// Join returns node self of a job on net, whose nodes share r.
func Join(t testing.TB, self metadata.NodeID, r *Registry, net *Network) *Node {
	return &Node{r, &Caller{self, net, r}, NewProcess(t)}
}

// Serve adds handlers to those of the node.
func (n *Node) Serve(table node.Handlers) { n.net.Serve(n.self, table) }

// Network returns the network of the node.
func (n *Node) Network() *Network { return n.net }
