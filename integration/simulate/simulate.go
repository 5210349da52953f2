// Package simulate runs the control plane of large jobs on a virtual clock and a virtual network: the daemons' own
// members of package daemon/member, leader and Raft group, without stores, mounts and processes. A run of 4,096 nodes
// takes a minute on two cores, and its times do not depend on this machine. Use it inside a bubble of
// testing/synctest.
//
// A message takes the model's latency, the time of its bytes on its receiver's link, and its receiver's processor,
// which handles one at a time. The streams of the Raft group take no time.
package simulate

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/daemon/member"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// Config describes a job.
type Config struct {
	Nodes int
	Model Model
	Dir   string                    // for the stores of the Raft group
	Start func(n int) time.Duration // when a node starts, after the first
	Mount time.Duration             // from a node's start until its mount is served
}

// Cluster is a running job.
type Cluster struct {
	net   *network
	nodes []*Node
	began time.Time
}

// Node is one daemon.
type Node struct {
	*member.Member
	id       metadata.NodeID
	net      *network
	log      *logrus.Entry
	handlers node.Handlers
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	started  chan struct{} // closed when the node runs
	served   time.Time     // when its mount is served
}

var _ node.Node = (*Node)(nil)

// Self implements node.Caller.
func (n *Node) Self() metadata.NodeID { return n.id }

// To implements node.Caller; members do not use it.
func (n *Node) To(metadata.NodeID) rpc.Caller { return nil }

// Call implements node.Caller.
func (n *Node) Call(ctx context.Context, id metadata.NodeID, op wire.Op, q, reply any) error {
	return n.net.call(ctx, n.id, id, op, q, reply)
}

// Spawn implements node.Process.
func (n *Node) Spawn(f func(context.Context)) { n.wg.Go(func() { f(n.ctx) }) }

// Log implements node.Process.
func (n *Node) Log() *logrus.Entry { return n.log }

// fill completes the report of a node with an average load.
func (n *Node) fill(r *leader.Report) {
	r.Addr, r.Ready = n.addr(), time.Now().After(n.served)
	r.Space = datapath.Space{Capacity: 3 << 40, Free: 1 << 40, Used: 2 << 40, Objects: 1_281_167}
}

func (n *Node) addr() string {
	return "10.0." + strconv.Itoa(int(n.id)/256) + "." + strconv.Itoa(int(n.id)%256) + ":7070"
}

// New makes a job whose nodes start as set in cfg.
func New(cfg Config) *Cluster {
	c := &Cluster{net: newNetwork(cfg.Model, cfg.Nodes), began: time.Now()}
	var hosts []string
	var addrs [][]string
	for i := range cfg.Nodes {
		n := &Node{id: metadata.NodeID(i), net: c.net, started: make(chan struct{})}
		hosts, addrs = append(hosts, fmt.Sprintf("node%04d", i)), append(addrs, []string{n.addr()})
		c.nodes = append(c.nodes, n)
	}
	c.net.nodes = c.nodes
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	for i, n := range c.nodes {
		n.log = logrus.NewEntry(quiet)
		n.ctx, n.cancel = context.WithCancel(context.Background())
		begin := cfg.Start(i)
		n.served = c.began.Add(begin + cfg.Mount)
		j := &job.File{Hosts: hosts, Addrs: addrs, Self: n.id, Seed: 1}
		n.Member = member.New(member.Config{
			Ctx: n.ctx, Node: n, Job: j, Every: leader.Every(cfg.Nodes, j.GiveUp()), Down: j.GiveUp(), Started: c.began.Add(begin),
			Group: raftstore.Config{Dir: filepath.Join(cfg.Dir, strconv.Itoa(i)), Dial: n.dial},
			Fill:  n.fill, Heard: func(member.Reply) {}, Leased: func(time.Time) {}, Disconnect: func(metadata.NodeID) {},
		})
		n.Spawn(func(ctx context.Context) { n.run(ctx, begin) })
	}
	return c
}

func (n *Node) dial(_ context.Context, id metadata.NodeID) (net.Conn, error) {
	return n.net.dial(n.id, id)
}

func (n *Node) run(ctx context.Context, begin time.Duration) {
	if node.Pause(ctx, begin) != nil {
		return
	}
	n.handlers = n.Handlers()
	if err := n.Open(); err != nil {
		panic(err) // without a disk there is no control plane to simulate
	}
	close(n.started)
	n.Member.Run(ctx)
}

// Lose ends nodes without notice to the others.
func (c *Cluster) Lose(ids ...metadata.NodeID) {
	for _, id := range ids {
		c.net.part(id, -1-int(id))
		c.nodes[id].cancel()
	}
}

// Cut moves a node to the other side of a partition, or back.
func (c *Cluster) Cut(id metadata.NodeID, cut bool) {
	if cut {
		c.net.part(id, 1)
		return
	}
	c.net.part(id, 0)
}

// Until waits until ok holds for the views of all nodes except but, and returns the time this takes.
func (c *Cluster) Until(ctx context.Context, ok func(cluster.View) bool, but ...metadata.NodeID) (time.Duration, error) {
	begun := time.Now()
	skip := make(map[metadata.NodeID]bool)
	for _, id := range but {
		skip[id] = true
	}
	for _, n := range c.nodes {
		if !skip[n.id] {
			if err := n.Until(ctx, ok); err != nil {
				return 0, fmt.Errorf("node %d: %w", n.id, err)
			}
		}
	}
	return time.Since(begun), nil
}

// Leader returns the leader of the control group, as known by node id.
func (c *Cluster) Leader(id metadata.NodeID) metadata.NodeID { return c.nodes[id].Leader() }

// Traffic returns a node's traffic so far.
func (c *Cluster) Traffic(id metadata.NodeID) Traffic {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	return c.net.traffic[id]
}

// Close ends all nodes.
func (c *Cluster) Close() {
	for _, n := range c.nodes {
		n.cancel()
	}
	for _, n := range c.nodes {
		_ = n.Member.Close() // the run has ended
		n.wg.Wait()
	}
}
