package testcluster

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// files makes n files of up to size bytes from a seed.
func files(n, size int) map[string][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	m := make(map[string][]byte)
	for i := range n {
		b := make([]byte, r.IntN(size))
		for k := range b {
			b[k] = byte(r.Uint32())
		}
		m[fmt.Sprintf("d%d/e%d/f%04d", i%5, i%3, i)] = b
	}
	return m
}

// writeTar writes files to a tar, in the order of their names.
func writeTar(t *testing.T, path string, m map[string][]byte) {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, p := range slices.Sorted(maps.Keys(m)) {
		b := m[p]
		if err := w.WriteHeader(&tar.Header{Name: p, Mode: 0o644, Size: int64(len(b)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func packTar(t *testing.T, plain, packed string) {
	t.Helper()
	b, err := os.ReadFile(plain)
	if err != nil {
		t.Fatal(err)
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(packed, z.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Size()
}

func writeTree(t testing.TB, dir string, m map[string][]byte) {
	t.Helper()
	for p, b := range m {
		p = filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns the bytes of a file of a dataset as read through node n.
func read(ctx context.Context, n *Node, ds metadata.DatasetID, path string) ([]byte, error) {
	ino, err := n.Client.Resolve(ctx, metadata.SealedIno(ds, metadata.DirPart, 0), path)
	if err != nil {
		return nil, err
	}
	a, err := n.Client.Getattr(ctx, ino)
	if err != nil {
		return nil, err
	}
	b := make([]byte, a.Size)
	got, err := n.Client.ReadFile(ctx, a, b, 0)
	return b[:got], err
}

// TestStageIn: a tar and a directory are staged completely on all nodes, and each byte of the source is read once.
func TestStageIn(t *testing.T) {
	t.Parallel()
	m := files(400, 30_000)
	m["big"] = bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	dir := t.TempDir()
	tarFile, tree := filepath.Join(dir, "set.tar"), filepath.Join(dir, "tree")
	writeTar(t, tarFile, m)
	writeTree(t, tree, m)
	c := Start(t, Config{Datasets: []job.Dataset{{Source: tarFile, Name: "tar"}, {Source: tree, Name: "tree"}}})
	ctx := context.Background()
	for _, name := range []string{"tar", "tree"} {
		ds := c.Dataset(t, 3, name)
		if ds.Phase != cluster.Sealed || ds.Files != int64(len(m)) {
			t.Fatalf("dataset %s: %+v", name, ds)
		}
		if ds.SourceBytes != ds.SourceSize {
			t.Errorf("%s: %d bytes read of a source of %d", name, ds.SourceBytes, ds.SourceSize)
		}
		for i, n := range c.Nodes {
			Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 2 || name == "tar" && len(n.Datasets()) > 0 })
			for p, want := range m {
				if got, err := read(ctx, n, ds.ID, p); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("node %d: %s: %d bytes, %v, want %d", i, p, len(got), err, len(want))
				}
			}
		}
	}
}

// TestStageInFails: an invalid source returns an error that gives the reason, and leaves no data behind.
func TestStageInFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole.tar")
	writeTar(t, whole, files(200, 20_000))
	b, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	corrupt := bytes.Clone(b)
	copy(corrupt[len(corrupt)/2&^511:], bytes.Repeat([]byte{0xff}, 100<<10))
	c := Start(t, Config{})
	for name, src := range map[string]string{
		"missing":   filepath.Join(dir, "nothing"),
		"truncated": write("truncated.tar", b[:len(b)*2/3]),
		"corrupt":   write("corrupt.tar", corrupt),
		"empty":     write("empty.tar", make([]byte, 10240)),
		"no tar":    write("text", bytes.Repeat([]byte("this is no tar\n"), 1000)),
	} {
		t.Run(name, func(t *testing.T) {
			err := c.Nodes[1].StageIn(context.Background(), job.Dataset{Source: src, Name: name})
			if err == nil || !strings.Contains(err.Error(), filepath.Base(src)) {
				t.Errorf("StageIn: %v, want an error that names %s", err, filepath.Base(src))
			}
			if ds := c.Dataset(t, 2, name); ds.Phase != cluster.Failed || ds.Error == "" {
				t.Errorf("the registry says %+v", ds)
			}
		})
	}
	for i, n := range c.Nodes {
		Eventually(t, "nothing is left", func() bool {
			s, err := n.Data().Space(context.Background())
			return err == nil && s.Objects == 0 && s.Used == 0
		})
		if d := n.Datasets(); len(d) != 0 {
			t.Errorf("node %d shows %v", i, d)
		}
	}
	if err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: whole, Name: "missing"}); err != nil {
		t.Errorf("a name is not free after a failure: %v", err)
	}
	err = c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: whole, Name: "missing"})
	if !errors.Is(err, syscall.EEXIST) {
		t.Errorf("a name that is taken: %v, want EEXIST", err)
	}
}

// TestScratch: the live realm over several nodes without a mount.
func TestScratch(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	a, b := c.Nodes[1].Client, c.Nodes[2].Client
	d, err := a.Mkdir(ctx, metadata.RootIno, "d", metadata.New{Mode: 0o040755, UID: 1000, GID: 1000})
	if err != nil {
		t.Fatal(err)
	}
	f, err := a.Create(ctx, d.Ino, "f", metadata.New{Mode: 0o100644, UID: 1000, GID: 1000})
	if err != nil {
		t.Fatal(err)
	}
	e, err := b.Lookup(ctx, d.Ino, "f")
	if err != nil || e.Ino != f.Ino {
		t.Fatalf("Lookup = %+v, %v", e, err)
	}
	if _, err := b.Create(ctx, d.Ino, "f", metadata.New{Mode: 0o100644}); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("Create of a taken name: %v, want EEXIST", err)
	}
	if err := b.Rmdir(ctx, metadata.RootIno, "d"); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("Rmdir: %v, want ENOTEMPTY", err)
	}
}

// TestLostNode: the others declare an unresponsive node down, and readmit it when it answers again.
func TestLostNode(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	state := func(of int) cluster.State {
		n, _ := c.Nodes[0].View().Map.Node(metadata.NodeID(of))
		return n.State
	}
	c.Cut(3)
	Eventually(t, "node 3 is given up", func() bool { return state(3) == cluster.Down })
	c.Mend(3)
	Eventually(t, "node 3 is back", func() bool { return state(3) == cluster.Up })
}

// TestStranger: a caller without the key gets no answer, and is counted.
func TestStranger(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 1})
	for name, cfg := range map[string]rpc.PeersConfig{
		"another key": {Key: rpc.Key{1}, Job: c.Nodes[0].Job.Name()},
		"another job": {Key: c.Key, Job: "other.0"},
	} {
		cfg.Self, cfg.Addrs = rpc.NoNode, func(metadata.NodeID) []string { return c.Addrs }
		p, err := rpc.NewPeers(cfg)
		if err != nil {
			t.Fatal(err)
		}
		call := rpc.Call{Op: wire.OpGetattr, Body: &wire.InoReq{Ino: metadata.RootIno}}
		if err := p.To(0).Do(context.Background(), &call); err == nil {
			t.Errorf("%s: got an answer", name)
		}
		p.Close()
	}
	Eventually(t, "both are counted", func() bool { return c.Nodes[0].Status(context.Background()).RPC.Rejected["key"] >= 2 })
	if s := c.Nodes[0].Status(context.Background()); s.RPC.Requests[wire.OpGetattr] != 0 {
		t.Errorf("answered %v", s.RPC.Requests)
	}
}

// TestMissingHost: the error names a host that never answers.
func TestMissingHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := &job.File{
		Version: job.Version, ID: "x", Hosts: []string{"here", "nowhere"}, StartTimeout: 1,
		Addrs: [][]string{{"127.0.0.1:0"}, {"127.0.0.1:1"}},
		Dirs:  job.Dirs{Store: []string{filepath.Join(dir, "s")}, Run: dir, Mount: dir},
	}
	d, err := daemon.Open(daemon.Config{Job: j, Key: rpc.Key{1}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.SetReady()
	if err := d.WaitUp(context.Background()); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("WaitUp: %v, want an error that names the host", err)
	}
}

// overSocket returns the answer of a server on a Unix socket.
func overSocket(t *testing.T, socket, path string) string {
	t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	r, err := (&http.Client{Transport: tr}).Get("http://daemon" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, r.Status, err)
	}
	return string(b)
}

// TestCtl: the control socket answers its owner, with JSON and metrics.
func TestCtl(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 1})
	path := c.Nodes[0].Job.CtlSocket()
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 || st.Mode().Type() != fs.ModeSocket {
		t.Fatalf("%s: %v, %v", path, st.Mode(), err)
	}
	ctl := daemon.NewCtl(path)
	ctx := context.Background()
	if s, err := ctl.Status(ctx); err != nil || !s.Ready || len(s.Nodes) != 1 {
		t.Errorf("Status = %+v, %v", s, err)
	}
	if m, err := ctl.Metrics(ctx); err != nil || !strings.Contains(m, "bivouac_nodes_up 1") {
		t.Errorf("Metrics = %q, %v", m, err)
	}
	if g := overSocket(t, path, "/debug/pprof/goroutine?debug=1"); !strings.Contains(g, "goroutine profile: total") {
		t.Errorf("pprof says %q", g)
	}
	if _, err := ctl.StageIn(ctx, job.Dataset{Source: "relative", Name: "x"}); err == nil {
		t.Error("a relative source was taken")
	}
	if _, err := daemon.NewCtl(filepath.Join(t.TempDir(), "no")).Status(ctx); err == nil || !strings.Contains(err.Error(), "still running") {
		t.Errorf("Status of nothing: %v", err)
	}
}
