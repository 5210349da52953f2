package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestBuggyPeer: a peer that has the key and sends nonsense gets an errno, and does no harm.
func TestBuggyPeer(t *testing.T) {
	t.Parallel()
	m := files(40, 10_000)
	tree := filepath.Join(t.TempDir(), "tree")
	writeTree(t, tree, m)
	c := Start(t, Config{Datasets: []job.Dataset{{Source: tree, Name: "set"}}})
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	for i := range c.Nodes[1:] { // they learn it with their next report
		c.Dataset(t, 1+i, "set")
	}
	peers, err := rpc.NewPeers(rpc.PeersConfig{
		Key: c.Key, Job: c.Nodes[0].Job.Name(), Self: 3, Addrs: func(id metadata.NodeID) []string { return c.Addrs[id : id+1] },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer peers.Close()
	for _, q := range []struct {
		op   wire.Op
		body string
		want syscall.Errno // 0 is any
	}{
		{wire.OpTask, `{}`, syscall.EINVAL},
		{wire.OpTask, `null`, syscall.EINVAL},
		{wire.OpTask, `[1]`, syscall.EINVAL},
		{wire.OpTask, `{"id":"x"}`, syscall.EINVAL},
		{wire.OpTask, `{"id":"x","kind":"stage-in","body":{"plan":{}}}`, syscall.EINVAL},
		{wire.OpTask, `{"id":"x","kind":"stage-in","body":{"plan":{"dataset":1,"kind":"tar","parts":[]},"part":0}}`, syscall.EINVAL},
		{wire.OpTask, `{"id":"x","kind":"stage-in","body":{"plan":{"dataset":1,"kind":"tar","parts":[{"index":0,"node":1}]},"part":-1}}`, syscall.EINVAL},
		{wire.OpTask, `{"id":"x","kind":"stage-in","body":{"plan":{"dataset":1,"kind":"tar","parts":[{"index":0,"node":999}]}}}`, syscall.EINVAL},
		{wire.OpTask, `{"id":"x","kind":"stage-in","body":{"plan":{"dataset":1,"kind":"tar","parts":[{"index":7,"node":1}]}}}`, syscall.EINVAL},
		{wire.OpTask, `{"id":"x","kind":"stage-in","body":{"plan":{"dataset":9,"kind":"tar","parts":[{"index":0,"node":2}]}}}`, syscall.EINVAL},
		{wire.OpTask, `{"id":"` + strings.Repeat("x", 1<<20) + `","kind":"stage-out","body":{"from":"a","to":"/x"}}`, syscall.EINVAL},
		{wire.OpTask, `{"id":"x","kind":"stage-out","body":{"from":"a","to":"relative"}}`, syscall.EINVAL},
		{wire.OpTask, `{"id":"x","kind":"stage-out","body":{"from":"../a","to":"/x"}}`, syscall.EINVAL},
		{wire.OpTaskPoll, `{"id":"nobody"}`, syscall.ESRCH},
		{wire.OpStageAbort, `{"dataset":0,"drop":true}`, syscall.EPERM},
		{wire.OpStageAbort, fmt.Sprintf(`{"dataset":%d,"drop":true}`, ds.ID), syscall.EPERM},
		{wire.OpTask, `{"id":"x","kind":"stage-in","body":{"plan":{"dataset":9,"kind":"tar","map":{"nodes":[{"id":1}]},"parts":[{"index":0,"node":0}]}}}`, syscall.EINVAL},
		{wire.OpStageBoundary, `{"dataset":9,"part":1}`, syscall.ESTALE}, // the node does not lead this one
		{wire.OpStageBoundary, fmt.Sprintf(`{"dataset":%d,"part":1}`, ds.ID), syscall.ESTALE},
		{wire.OpManifest, `{"dataset":1,"name":"../../meta/CURRENT"}`, syscall.EINVAL},
		{wire.OpManifest, `{"dataset":1,"name":"/"}`, syscall.EINVAL},
		{wire.OpManifest, `{"dataset":1,"name":".."}`, syscall.EINVAL},
		{wire.OpManifest, `{"dataset":1,"name":""}`, syscall.EINVAL},
		{wire.OpManifest, `{"dataset":1,"name":"manifest.ingested"}`, syscall.EINVAL},
		{wire.OpManifest, `{"dataset":1,"name":"records-x/../../.."}`, syscall.EINVAL},
		{wire.OpManifest, `{"dataset":1,"name":"manifest","off":-1}`, syscall.EINVAL},
		{wire.OpManifest, `{"dataset":77,"name":"manifest"}`, syscall.ENOENT},
		{wire.OpPropose, `{}`, syscall.EPERM},
		{wire.OpPropose, `{"kind":"closing"}`, syscall.EPERM},
		{wire.OpPropose, `{"kind":"nodes","nodes":[{"id":1,"state":"down"}]}`, syscall.EPERM},
		{wire.OpPropose, `{"kind":"dataset-add","dataset":{"name":"x","source":"/x","coordinator":2}}`, syscall.EPERM},
		{wire.OpPropose, `{"kind":"dataset-add","dataset":{"name":"../x","source":"/x","coordinator":3}}`, syscall.EINVAL},
		{wire.OpPropose, fmt.Sprintf(`{"kind":"dataset-set","dataset":{"id":%d,"phase":"failed","coordinator":3}}`, ds.ID), 0},
		{wire.OpPropose, `{"kind":"dataset-set","dataset":{"id":1,"phase":"nonsense","coordinator":3}}`, syscall.EINVAL},
		{wire.OpReadDir, string(wire.Append(nil, &wire.ReadDirReq{Dir: metadata.RootIno, Limit: 1 << 31})), syscall.EINVAL},
		{wire.OpRead, string(wire.Append(nil, &wire.ReadReq{Ino: 5000, Len: 1 << 31})), syscall.EINVAL},
		{wire.OpWrite, string(wire.Append(nil, &wire.WriteReq{Ino: 5000, Off: -1})), syscall.EINVAL},
	} {
		for to := range metadata.NodeID(2) {
			body := wire.Raw(q.body)
			call := rpc.Call{Op: q.op, Body: &body}
			err := peers.To(to).Do(context.Background(), &call)
			if err == nil || q.want != 0 && !errors.Is(err, q.want) {
				t.Errorf("%v %.80q to node %d: %v, want %v", q.op, q.body, to, err, q.want)
			}
		}
	}
	for part := range 2000 { // boundaries of an unknown dataset
		body := wire.Raw(fmt.Sprintf(`{"dataset":99,"part":%d,"to_reader":true,"boundary":{"carry":"%s"}}`, part, strings.Repeat("AAAA", 1000)))
		if err := peers.To(1).Do(context.Background(), &rpc.Call{Op: wire.OpStageBoundary, Body: &body}); err != nil {
			if !errors.Is(err, syscall.EBUSY) {
				t.Errorf("boundary %d: %v, want EBUSY", part, err)
			}
			break
		}
		if part == 1999 {
			t.Error("a peer can send boundaries without end")
		}
	}
	for i, n := range c.Nodes {
		s := n.Status(context.Background())
		if s.RPC.Panics != 0 || s.Shares != 0 || len(s.Datasets) != 1 || !s.Datasets[0].Ready || s.Closing {
			t.Errorf("node %d: %+v", i, s)
		}
		for p, want := range m {
			if got, err := read(context.Background(), n, ds.ID, p); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("node %d: %s: %d bytes, %v", i, p, len(got), err)
			}
		}
	}
}

// TestHostilePieces: a piece with a wrong checksum, or of no dataset, is refused alone; a message with inconsistent
// lengths is refused as a whole.
func TestHostilePieces(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 2})
	to := c.Nodes[1].Peers().To(0)
	good, bad := []byte("what was sent"), []byte("what was not sent")
	ino := func(seq uint32) metadata.Ino { return metadata.SealedIno(9, 0, seq) }
	q := wire.PutPiecesReq{Heads: []wire.PieceHeader{
		{Ino: ino(1), Len: uint32(len(bad)), Sum: wire.PieceSum(good)},
		{Ino: metadata.LiveIno(0, 99), Len: uint32(len(good)), Sum: wire.PieceSum(good)},
		{Ino: ino(2), Off: -1, Len: uint32(len(good)), Sum: wire.PieceSum(good)},
		{Ino: ino(3), Off: 5, Len: uint32(len(good)), Sum: wire.PieceSum(good)},
	}}
	var r wire.PutPiecesResp
	call := rpc.Call{Op: wire.OpPutPieces, Body: &q, Reply: &r, Data: [][]byte{bad, good, good, good}}
	if err := to.Do(context.Background(), &call); err != nil {
		t.Fatal(err)
	}
	want := []syscall.Errno{syscall.EBADMSG, syscall.EINVAL, syscall.EINVAL, 0}
	if !slices.Equal(r.Status, want) {
		t.Errorf("%v, want %v", r.Status, want)
	}
	call.Data = call.Data[:3]
	if err := to.Do(context.Background(), &call); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("the bytes of three pieces for four: %v, want EPROTO", err)
	}
}

// TestLateWrite: a write that arrives after its dataset has failed is refused.
func TestLateWrite(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 2})
	err := c.Nodes[1].StageIn(context.Background(), job.Dataset{Source: filepath.Join(t.TempDir(), "no"), Name: "no"})
	if err == nil {
		t.Fatal("a source that is not there was staged")
	}
	ds := c.Dataset(t, 0, "no")
	call := rpc.Call{Op: wire.OpWrite, Body: &wire.WriteReq{Ino: metadata.SealedIno(ds.ID, 0, 1)}, Data: [][]byte{{1}}}
	if err := c.Nodes[1].Peers().To(0).Do(context.Background(), &call); !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("late write: %v, want ECANCELED", err)
	}
}
