package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

func TestGroupOfOne(t *testing.T) {
	begin := time.Now()
	c := startGroup(t, 1)
	if id := c.leader(); id != 0 {
		t.Errorf("the leader is %d", id)
	}
	t.Logf("leads after %v", time.Since(begin))
	if time.Since(begin) > 5*time.Second {
		t.Error("a group of one does not elect itself at once")
	}
	if v := c.group(0).View(); !reflect.DeepEqual(v, initialView()) {
		t.Errorf("the first View = %+v", v)
	}
	changed := c.group(0).Changed()
	v := c.propose(up(1, "b:1"))
	if n, _ := v.Map.Node(1); v.Version != 1 || n.State != cluster.Up || n.Addr != "b:1" {
		t.Errorf("the View after a command = %+v", v)
	}
	<-changed
	c.await(0, v)
	now, err := c.group(0).Propose(t.Context(), up(9, "x"))
	if !errors.Is(err, syscall.EINVAL) || !reflect.DeepEqual(now, v) {
		t.Errorf("Propose of no node = %+v, %v, want EINVAL and the View as it is", now, err)
	}
	if _, err := c.group(0).Propose(t.Context(), Command{Kind: KindNodes, Nodes: []cluster.Change{{State: 99}}}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Propose of no state = %v, want EINVAL", err)
	}

	g := c.group(0)
	c.stop(0)
	if _, err := g.Propose(t.Context(), up(1, "b:2")); !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("Propose after Close = %v, want ESHUTDOWN", err)
	}
	must(t, g.Close())
	c.start(0)
	c.await(0, v)
}

func TestContext(t *testing.T) {
	c := startGroup(t, 1)
	c.leader()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.group(0).Propose(ctx, up(0, "a")); !errors.Is(err, syscall.EINTR) {
		t.Errorf("Propose with a cancelled context = %v, want EINTR", err)
	}
	ctx, cancel = context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	if _, err := c.group(0).Propose(ctx, up(0, "a")); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("Propose after its deadline = %v, want ETIMEDOUT", err)
	}
}

func TestNotLeader(t *testing.T) {
	c := startGroup(t, 3)
	lead := c.leader()
	follower := (lead + 1) % 3
	_, err := c.group(follower).Propose(t.Context(), up(0, "a"))
	var no *NotLeaderError
	if !errors.As(err, &no) || !no.Known || no.Leader != lead || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("Propose to a follower = %v, want the leader, %d", err, lead)
	}
}

// TestFollowersHear: followers learn of a commit immediately, even if no entry follows it.
func TestFollowersHear(t *testing.T) {
	c := startTimed(t, 3, Timing{Commit: time.Hour})
	for id := range metadata.NodeID(3) {
		v := c.propose(up(id, "at"))
		for _, m := range c.members {
			c.await(m, v)
		}
	}
}

// TestFailover stops the leader; the others continue, and it returns.
func TestFailover(t *testing.T) {
	c := startGroup(t, 3)
	lead := c.leader()
	v := c.propose(up(0, "a:1"))
	for _, id := range c.members {
		c.await(id, v)
	}
	c.stop(lead)
	rest := []metadata.NodeID{(lead + 1) % 3, (lead + 2) % 3}
	v = c.propose(up(1, "b:1"), rest...)
	for _, id := range rest {
		c.await(id, v)
	}
	c.start(lead)
	c.await(lead, v)
	v = c.propose(up(2, "c:1"))
	for _, id := range c.members {
		c.await(id, v)
	}
}

// TestPartition partitions the leader, which must not acknowledge a commit. The others continue; after the partition
// heals, it has their commits.
func TestPartition(t *testing.T) {
	c := startGroup(t, 3)
	old := c.leader()
	c.await(old, c.propose(up(0, "a:1")))
	rest := []metadata.NodeID{(old + 1) % 3, (old + 2) % 3}
	c.net.split(old)

	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	_, err := c.group(old).Propose(ctx, up(0, "lost:1"))
	var no *NotLeaderError
	if !errors.As(err, &no) || no.Known && no.Leader == old {
		t.Errorf("Propose to a leader that is cut off = %v, want NotLeaderError", err)
	}
	c.propose(up(1, "b:1"), rest...)
	v := c.propose(Command{Kind: KindAddDataset, Dataset: cluster.Dataset{Name: "x"}}, rest...)
	if n, _ := c.group(old).View().Map.Node(1); n.State == cluster.Up {
		t.Error("the member that is cut off knows what the others agreed on")
	}
	c.net.split()
	c.await(old, v)
	if n, _ := c.group(old).View().Map.Node(0); n.Addr != "a:1" {
		t.Errorf("node 0 is at %s: what was not agreed on came to pass", n.Addr)
	}

	c.net.split(c.members...) // heals the partition
	v = c.propose(up(2, "c:1"))
	for _, id := range c.members {
		c.await(id, v)
	}
}

// TestSnapshot compacts the log; a member that was away gets the snapshot, and one that restarts begins with its own.
func TestSnapshot(t *testing.T) {
	c := startGroup(t, 3)
	lead := c.leader()
	away := (lead + 1) % 3
	c.await(away, c.propose(up(0, "a:0")))
	c.stop(away)
	rest := []metadata.NodeID{lead, (lead + 2) % 3}
	var v cluster.View
	for i := range 20 {
		v = c.propose(up(0, fmt.Sprint("a:", i+1)), rest...)
	}
	for _, id := range rest {
		g := c.group(id)
		c.await(id, v)
		conf := g.raft.ReloadableConfig()
		conf.TrailingLogs = 1
		must(t, g.raft.ReloadConfig(conf))
		must(t, g.raft.Snapshot().Error())
		if first, err := g.store.FirstIndex(); err != nil || first < 10 {
			t.Errorf("member %d has its log from %d on, %v: the snapshot did not cut it", id, first, err)
		}
	}
	c.start(away)
	c.await(away, v)
	store, err := raft.NewFileSnapshotStore(c.disks[away], keptSnapshots, io.Discard)
	must(t, err)
	snaps, err := store.List()
	if err != nil || len(snaps) != 1 {
		t.Errorf("the member that was away has the snapshots %v, %v, want the leader's", snaps, err)
	}
	for _, id := range c.members {
		c.stop(id)
	}
	for _, id := range c.members {
		c.start(id)
	}
	c.leader()
	for _, id := range c.members {
		c.await(id, v)
	}
	v = c.propose(up(1, "b:1"))
	for _, id := range c.members {
		c.await(id, v)
	}
}

// TestCloseNeverHangs closes members while proposals run and peers are silent.
func TestCloseNeverHangs(t *testing.T) {
	begin := time.Now()
	t.Run("under load", func(t *testing.T) {
		c := startGroup(t, 3)
		lead := c.leader()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for {
					_, err := c.groupOrNil(lead).Propose(context.Background(), up(metadata.NodeID(i%3), fmt.Sprint(i)))
					if err != nil {
						return
					}
				}
			})
		}
		c.propose(Command{Kind: KindClosing})
		for _, id := range c.members {
			c.stop(id)
		}
		wg.Wait()
	})
	t.Run("silent peers", func(t *testing.T) {
		g, err := Open(Config{
			Dir: t.TempDir(), Self: 1, Members: []metadata.NodeID{0, 1, 2}, Log: testLog(t),
			Timing: Timing{Heartbeat: 10 * time.Millisecond, Election: 10 * time.Millisecond, Call: time.Hour},
			Dial: func(ctx context.Context, id metadata.NodeID) (net.Conn, error) {
				if id == 0 { // the connection hangs
					<-ctx.Done()
					return nil, syscall.ETIMEDOUT
				}
				a, _ := net.Pipe() // never answers
				return a, nil
			},
		})
		must(t, err)
		for range 20 { // more than are queued
			_, b := net.Pipe()
			g.Accept(b)
		}
		changed := g.LeaderChanged()
		select {
		case <-changed: // it became a candidate
		case <-time.After(patient):
			t.Error("the member never became a candidate")
		}
		must(t, g.Close())
		a, b := net.Pipe()
		g.Accept(b)
		if _, err := a.Read(make([]byte, 1)); err == nil {
			t.Error("a stream given after Close is open")
		}
	})
	if d := time.Since(begin); d > patient {
		t.Errorf("it took %v", d)
	}
}

// groupOrNil returns the group of a member, even after it was closed.
func (c *trio) groupOrNil(id metadata.NodeID) *Group {
	if g := c.group(id); g != nil {
		return g
	}
	return &Group{closed: true}
}

func TestConfig(t *testing.T) {
	_, err := Open(Config{Self: 3, Members: []metadata.NodeID{0, 1, 1}})
	if err == nil {
		t.Fatal("a bad Config is taken")
	}
	for _, want := range []string{"no directory", "node 3 is none of the members [0 1 1]", "twice", "dial"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Open = %v, want %q in it", err, want)
		}
	}
	if _, err := Open(Config{Dir: "/proc/no", Members: []metadata.NodeID{0}, Log: testLog(t)}); err == nil {
		t.Error("a store under /proc is opened")
	}
}

// LeaderChanged returns a channel that is closed when Leader or IsLeader may
// have changed next.
func (g *Group) LeaderChanged() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leadings
}
