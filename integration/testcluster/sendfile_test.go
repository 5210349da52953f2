package testcluster

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// sampleSize is the size of the files whose remote reads are measured.
const sampleSize = 110 << 10

// remoteSamples stages files of sampleSize in on two nodes, and returns those that node 0 reads from node 1.
func remoteSamples(t testing.TB) (*Cluster, []metadata.Attr) {
	t.Helper()
	m := make(map[string][]byte)
	for i := range 64 {
		m[string(rune('A'+i))] = bytes.Repeat([]byte{byte(i + 1)}, sampleSize)
	}
	tree := filepath.Join(t.TempDir(), "tree")
	writeTree(t, tree, m)
	c := Start(t, Config{Nodes: 2, Datasets: []job.Dataset{{Source: tree, Name: "set"}}})
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	n := c.Nodes[0]
	Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
	var far []metadata.Attr
	for p := range m {
		ino, err := n.Client.Resolve(context.Background(), metadata.SealedIno(ds.ID, metadata.DirPart, 0), p)
		if err != nil {
			t.Fatal(err)
		}
		a, err := n.Client.Getattr(context.Background(), ino)
		if err != nil {
			t.Fatal(err)
		}
		if a.Layout.Kind == metadata.Local && a.Layout.Node == 1 {
			far = append(far, a)
		}
	}
	if len(far) == 0 {
		t.Fatal("node 1 has no file")
	}
	return c, far
}

// TestReadsAreSentFromTheFile: the data of a remote read of a sealed file goes from its object to the socket without
// a copy in the daemon, and is right; no descriptor is leaked.
func TestReadsAreSentFromTheFile(t *testing.T) {
	t.Parallel()
	c, far := remoteSamples(t)
	before := c.Nodes[1].Status(context.Background()).RPC.FileOut
	for _, a := range far {
		p := make([]byte, sampleSize+1)
		n, err := c.Nodes[0].Client.ReadFile(context.Background(), a, p, 0)
		if err != nil || n != sampleSize || !bytes.Equal(p[:n], bytes.Repeat(p[:1], n)) || p[0] == 0 {
			t.Errorf("%v: %d bytes, %v", a.Ino, n, err)
		}
		if n, err = c.Nodes[0].Client.ReadFile(context.Background(), a, p[:40_000], sampleSize-20_000); n != 20_000 || err != nil {
			t.Errorf("%v: at the end: %d bytes, %v", a.Ino, n, err)
		}
	}
	want := int64(len(far)) * (sampleSize + 20_000)
	if got := c.Nodes[1].Status(context.Background()).RPC.FileOut - before; got != want {
		t.Errorf("%d bytes were sent from files, want all %d", got, want)
	}
}

// TestReadIsOneCall: reading a small remote file costs one call; its attributes cost none.
func TestReadIsOneCall(t *testing.T) {
	t.Parallel()
	c, far := remoteSamples(t)
	served := func() map[wire.Op]int64 { return c.Nodes[1].Status(context.Background()).RPC.Requests }
	before := served()
	for _, a := range far {
		if _, err := c.Nodes[0].Client.Getattr(context.Background(), a.Ino); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Nodes[0].Client.ReadFile(context.Background(), a, make([]byte, 1<<20), 0); err != nil || n != sampleSize {
			t.Fatalf("%v: %d bytes, %v", a.Ino, n, err)
		}
	}
	after := served()
	if n := after[wire.OpRead] - before[wire.OpRead]; n != int64(len(far)) {
		t.Errorf("%d reads of %d files", n, len(far))
	}
	for _, op := range []wire.Op{wire.OpLookup, wire.OpGetattr, wire.OpLookupLease, wire.OpGetattrLease, wire.OpOpen, wire.OpReadSummed} {
		if n := after[op] - before[op]; n != 0 {
			t.Errorf("%d calls of %v for files of a dataset", n, op)
		}
	}
}

// BenchmarkRemoteRead reads remote sealed files, and reports the processor time of both ends.
func BenchmarkRemoteRead(b *testing.B) {
	c, far := remoteSamples(b)
	p := make([]byte, sampleSize)
	b.SetBytes(sampleSize)
	b.ResetTimer()
	start := processor(b)
	for i := range b.N {
		if _, err := c.Nodes[0].Client.ReadFile(context.Background(), far[i%len(far)], p, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((processor(b)-start).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
}
