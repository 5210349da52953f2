package testcluster

import (
	"context"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// mute is a connection on which writes fail once from returns true.
type mute struct {
	net.Conn
	from func() bool
}

func (c mute) Write(p []byte) (int, error) {
	if c.from() {
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(p)
}

// publishing reports whether a node knows of a published dataset.
func publishing(n *Node) bool {
	for _, ds := range n.View().Datasets {
		if ds.Phase >= cluster.Publishing {
			return true
		}
	}
	return false
}

// TestPublishingLeaderIsLost: the node that leads a stage-in has made the manifest, and is lost before another node
// has requested it.
func TestPublishingLeaderIsLost(t *testing.T) {
	t.Parallel()
	m := files(100, 20_000)
	archive := filepath.Join(t.TempDir(), "set.tar")
	writeTar(t, archive, m)
	dir := t.TempDir()
	writeTree(t, dir, m)
	for name, s := range map[string]job.Dataset{
		"read once": {Source: archive},
		"skipping":  {Source: archive, Options: stagein.Options{OnError: stagein.OnErrorSkip}},
		"scanned":   {Source: dir},
		"in order":  {Source: dir, Options: stagein.Options{Fill: stagein.Order{Kind: stagein.OrderSeed, Seed: 3}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := Start(t, Config{})
			for i, n := range c.Nodes[:leads] {
				c.Tamper(i, func(to int, conn net.Conn) net.Conn {
					if to != leads {
						return conn
					}
					return mute{conn, func() bool { return publishing(n) }}
				})
			}
			s.Name = "set"
			if _, err := daemon.NewCtl(c.Nodes[leads].Job.CtlSocket()).StageIn(context.Background(), s); err != nil {
				t.Fatal(err)
			}
			Eventually(t, "the manifest is published", func() bool { return publishing(c.Nodes[0]) })
			c.Cut(leads)
			ds := c.Dataset(t, 0, "set")
			if ds.Phase != cluster.Sealed || ds.Files != int64(len(m)) {
				t.Fatalf("dataset: %+v", ds)
			}
			readAll(t, &Cluster{Nodes: c.Nodes[:leads]}, ds.ID, m, 1)
		})
	}
}

// TestManifestIsHandedOut: in a small job a node that is no standby already has the manifest when it learns of it,
// and need not request it.
func TestManifestIsHandedOut(t *testing.T) {
	t.Parallel()
	const last = leads - 1 // the standbys are the nodes before it
	dir := t.TempDir()
	writeTree(t, dir, files(100, 2_000))
	c := Start(t, Config{})
	c.Tamper(last, func(_ int, conn net.Conn) net.Conn {
		return mute{conn, func() bool { return publishing(c.Nodes[last]) }}
	})
	if _, err := daemon.NewCtl(c.Nodes[leads].Job.CtlSocket()).StageIn(t.Context(), job.Dataset{Source: dir, Name: "set"}); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the node has the tree", func() bool {
		return len(c.Nodes[last].Datasets()) == 1
	})
}
