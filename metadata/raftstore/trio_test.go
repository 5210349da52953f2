package raftstore

import (
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// network carries the members' streams, and can cut them.
type network struct {
	mu     sync.Mutex
	groups map[metadata.NodeID]*Group // guarded by mu
	side   map[metadata.NodeID]int    // members on different sides cannot communicate; guarded by mu
	conns  []wire                     // guarded by mu
}

type wire struct {
	from, to metadata.NodeID
	conn     net.Conn
}

func (n *network) dial(from metadata.NodeID) func(context.Context, metadata.NodeID) (net.Conn, error) {
	return func(_ context.Context, to metadata.NodeID) (net.Conn, error) {
		n.mu.Lock()
		g := n.groups[to]
		apart := n.side[from] != n.side[to]
		a, b := net.Pipe()
		n.conns = append(n.conns, wire{from, to, a})
		n.mu.Unlock()
		if g == nil || apart {
			return nil, syscall.EHOSTUNREACH
		}
		g.Accept(b)
		return a, nil
	}
}

// split partitions the members into two sides, and cuts the streams between them.
func (n *network) split(alone ...metadata.NodeID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.side = map[metadata.NodeID]int{}
	for _, id := range alone {
		n.side[id] = 1
	}
	for _, w := range n.conns {
		if n.side[w.from] != n.side[w.to] {
			_ = w.conn.Close()
		}
	}
}

// trio is a group of about three members in one process.
type trio struct {
	*testing.T
	net     *network
	disks   map[metadata.NodeID]string
	members []metadata.NodeID
	timing  Timing
}

// patient is the longest wait for an event that must happen.
const patient = 20 * time.Second

func startGroup(t *testing.T, size int) *trio {
	t.Helper()
	return startTimed(t, size, Timing{})
}

func startTimed(t *testing.T, size int, timing Timing) *trio {
	t.Helper()
	c := &trio{T: t, timing: timing, net: &network{groups: map[metadata.NodeID]*Group{}}, disks: map[metadata.NodeID]string{}}
	for i := range metadata.NodeID(size) {
		c.members = append(c.members, i)
		c.disks[i] = t.TempDir()
	}
	for _, id := range c.members {
		c.start(id)
	}
	t.Cleanup(func() {
		for _, id := range c.members {
			c.stop(id)
		}
	})
	return c
}

func (c *trio) start(id metadata.NodeID) *Group {
	c.Helper()
	cfg := Config{
		Dir: c.disks[id], Self: id, Members: c.members, Initial: initialView(),
		Dial: c.net.dial(id), Log: testLog(c.T), Timing: c.timing,
	}
	cfg.Timing.Call = 500 * time.Millisecond
	if len(c.members) > 1 {
		cfg.Timing.Heartbeat, cfg.Timing.Election = 100*time.Millisecond, 100*time.Millisecond
	}
	g, err := Open(cfg)
	must(c.T, err)
	c.net.mu.Lock()
	c.net.groups[id] = g
	c.net.mu.Unlock()
	return g
}

func (c *trio) group(id metadata.NodeID) *Group {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	return c.net.groups[id]
}

// stop closes a member, which must not take long.
func (c *trio) stop(id metadata.NodeID) {
	c.Helper()
	g := c.group(id)
	if g == nil {
		return
	}
	c.net.mu.Lock()
	delete(c.net.groups, id)
	c.net.mu.Unlock()
	if err := g.Close(); err != nil {
		c.Errorf("Close of member %d = %v", id, err)
	}
}

// leader waits until the given members agree on a leader, and returns it.
func (c *trio) leader(among ...metadata.NodeID) metadata.NodeID {
	c.Helper()
	if among == nil {
		among = c.members
	}
	ctx, cancel := context.WithTimeout(c.Context(), patient)
	defer cancel()
	for {
		first := c.group(among[0])
		changed := first.LeaderChanged()
		id, ok := first.Leader()
		ok = ok && slices.Contains(among, id)
		for _, o := range among {
			other, known := c.group(o).Leader()
			ok = ok && known && other == id && c.group(o).IsLeader() == (o == id)
		}
		if ok {
			return id
		}
		select {
		case <-changed:
		case <-time.After(5 * time.Millisecond): // this member gets no notice from the others
		case <-ctx.Done():
			c.Fatalf("members %v have no leader", among)
		}
	}
}

// propose commits cmd through the members in among, whichever leads.
func (c *trio) propose(cmd Command, among ...metadata.NodeID) cluster.View {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), patient)
	defer cancel()
	for {
		v, err := c.group(c.leader(among...)).Propose(ctx, cmd)
		var no *NotLeaderError
		if errors.As(err, &no) {
			continue
		}
		must(c.T, err)
		return v
	}
}

// await waits until a member's View is want, or a later one.
func (c *trio) await(id metadata.NodeID, want cluster.View) {
	c.Helper()
	timeout := time.After(patient)
	for {
		g := c.group(id)
		changed := g.Changed()
		v := g.View()
		if v.Version >= want.Version {
			if v.Version == want.Version && !reflect.DeepEqual(v, want) {
				c.Fatalf("View of member %d = %+v, want %+v", id, v, want)
			}
			return
		}
		select {
		case <-changed:
		case <-timeout:
			c.Fatalf("View of member %d = version %d, want %d", id, v.Version, want.Version)
		}
	}
}

func up(id metadata.NodeID, addr string) Command {
	return Command{Kind: KindNodes, Nodes: []cluster.Change{{ID: id, State: cluster.Up, Addr: addr}}}
}

func testLog(t *testing.T) *logrus.Entry {
	l := logrus.New()
	l.SetOutput(t.Output())
	l.SetLevel(logrus.WarnLevel)
	return logrus.NewEntry(l)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
