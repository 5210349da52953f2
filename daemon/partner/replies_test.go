package partner

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestLostAnswerOfStandIn: a change whose reply from a stand-in was lost runs once, and its reply arrives in the end.
func TestLostAnswerOfStandIn(t *testing.T) {
	for _, c := range []struct {
		op   wire.Op
		says error
	}{{wire.OpMkdir, nil}, {wire.OpUnlink, nil}, {wire.OpRename, syscall.ENOENT}} {
		t.Run(c.op.String(), func(t *testing.T) {
			var conn atomic.Pointer[net.Conn] // of the client
			var runs atomic.Int64
			home := node.Handlers{c.op: func(context.Context, *rpc.Request, *rpc.Response) error {
				if runs.Add(1) == 1 {
					_ = (*conn.Load()).Close()
				}
				return c.says
			}}
			err := standInOverNetwork(t, &conn, home).Client(2).Do(t.Context(), &rpc.Call{Op: c.op})
			if runs.Load() != 1 || !errors.Is(err, c.says) {
				t.Errorf("%v ran %d times: %v, want once: %v", c.op, runs.Load(), err, c.says)
			}
		})
	}
}

// TestAnswerLostWithHome: the outcome of a change whose reply was lost along with its home is unknown.
func TestAnswerLostWithHome(t *testing.T) {
	var conn atomic.Pointer[net.Conn]
	p := standInOverNetwork(t, &conn, nil)
	for _, self := range []metadata.NodeID{0, 1} { // a client elsewhere, and one on the stand-in
		fate := wire.CachedReplyResp{}
		q := &wire.CachedReplyReq{Conn: wire.Nonce{1}, Tag: 1}
		c := &caller{&Partner{Sender: &Sender{node: nodetest.Join(t, self, p.node.(*nodetest.Node).Registry, nodetest.NewNetwork())}, cfg: p.cfg}, self, 2}
		if err := c.Do(t.Context(), &rpc.Call{Op: wire.OpCachedReply, Body: q, Reply: &fate}); err != nil || fate.Fate != wire.Unknown {
			t.Errorf("node %d: fate %v, %v, want unknown", self, fate.Fate, err)
		}
	}
}

// standInOverNetwork returns the Partner of node 0, with a real connection to node 1, which stands in for the lost node
// 2 with the handlers home.
func standInOverNetwork(t *testing.T, conn *atomic.Pointer[net.Conn], home node.Handlers) *Partner {
	t.Helper()
	v := nodetest.View(3)
	v.Map, _ = v.Map.WithPartner(2, 0, cluster.Partner{Node: 1, Since: v.Map.Epoch})
	v.Map = v.Map.WithState(2, cluster.Down, "")
	r, net0 := nodetest.NewRegistry(v), nodetest.NewNetwork()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.NewEntry(logrus.New())
	log.Logger.SetLevel(logrus.PanicLevel)
	at := &Partner{Sender: &Sender{node: nodetest.Join(t, 1, r, net0)}, opened: map[metadata.NodeID]standIn{2: {table: home}}, cfg: Config{Here: func() node.Handlers { return nil }}}
	epoch := func() metadata.Epoch { return r.View().Map.Epoch }
	s, err := rpc.NewServer(rpc.ServerConfig{Key: rpc.Key{1}, Job: "1", Self: 1, Handlers: map[wire.Op]rpc.Handler{
		wire.OpStandIn: at.onStandIn, wire.OpStandInPeer: at.onStandIn, wire.OpStandInOnce: at.onStandIn,
	}, Epoch: epoch, NewerEpoch: func(metadata.NodeID, metadata.Epoch) {}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l) // returns after Close
	}()
	var d net.Dialer
	peers, err := rpc.NewPeers(rpc.PeersConfig{
		Key: rpc.Key{1}, Job: "1", Self: 0, Epoch: epoch, NewerEpoch: func(metadata.NodeID, metadata.Epoch) {}, Log: log,
		Addrs: func(metadata.NodeID) []string { return []string{l.Addr().String()} },
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := d.DialContext(ctx, "tcp", addr)
			if err == nil {
				conn.Store(&c)
			}
			return c, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		peers.Close()
		_ = s.Close()
		<-served
	})
	return &Partner{Sender: &Sender{node: nodetest.Join(t, 0, r, net0)}, cfg: Config{Peer: func(id metadata.NodeID) rpc.Caller { return peers.To(id) }}}
}
