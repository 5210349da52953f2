package testcluster

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// record returns the kth record of writer w: a line with a checksum that shows tearing. All records differ.
func record(w, k int) []byte {
	body := fmt.Sprintf("%d %d %s", w, k, bytes.Repeat([]byte{byte('a' + w)}, (w*7919+k*104729)%3000))
	return fmt.Appendf(nil, "%08x %s\n", crc32.ChecksumIEEE([]byte(body)), body)
}

// records splits a file into records. It fails on a torn record or on zeros. Unless complete is set, the last record
// may be partial.
func records(b []byte, complete bool) (map[string]int, error) {
	all := make(map[string]int)
	for len(b) > 0 {
		if i := bytes.IndexByte(b, 0); i >= 0 {
			return nil, fmt.Errorf("zeros %d bytes before the end", len(b)-i)
		}
		line, rest, ok := bytes.Cut(b, []byte("\n"))
		if !ok && !complete {
			return all, nil
		}
		var sum uint32
		if _, err := fmt.Sscanf(string(line[:min(8, len(line))]), "%08x", &sum); err != nil || len(line) < 9 || crc32.ChecksumIEEE(line[9:]) != sum {
			return nil, fmt.Errorf("a torn record: %.80q", line)
		}
		all[string(line)]++
		b = rest
	}
	return all, nil
}

// appendAll runs writers on all nodes that append n records each, and calls during meanwhile.
func appendAll(t *testing.T, c *Cluster, ino metadata.Ino, writers, n int, during func()) {
	t.Helper()
	ctx := context.Background()
	var wg sync.WaitGroup
	for w := range writers {
		node := c.Nodes[w%len(c.Nodes)]
		f := openFile(t, node, ino)
		to := f.Writer()
		wg.Go(func() {
			for k := range n {
				r := record(w, k)
				if m, err := to.Append(ctx, r); m != len(r) || err != nil {
					t.Errorf("writer %d: Append = %d, %v", w, m, err)
					return
				}
			}
			if err := to.Close(ctx); err != nil {
				t.Errorf("writer %d: %v", w, err)
			}
		})
	}
	during()
	wg.Wait()
}

func wantRecords(t *testing.T, n *Node, name string, writers, per int) {
	t.Helper()
	b, err := live(n, name)
	if err != nil {
		t.Fatal(err)
	}
	all, err := records(b, true)
	if err != nil {
		t.Fatal(err)
	}
	for w := range writers {
		for k := range per {
			if n := all[string(bytes.TrimSuffix(record(w, k), []byte("\n")))]; n != 1 {
				t.Fatalf("record %d of writer %d is there %d times", k, w, n)
			}
		}
	}
	if len(all) != writers*per {
		t.Errorf("%d records, want %d", len(all), writers*per)
	}
}

// TestAppends: concurrent appends of all nodes lose and tear nothing, and concurrent readers see whole records, also
// through an open file.
func TestAppends(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	const writers, per = 8, 120
	a := put(t, c.Nodes[1], metadata.RootIno, "log", nil, metadata.Layout{})
	var over atomic.Bool
	var readers sync.WaitGroup
	for _, n := range []*Node{c.Nodes[0], c.Nodes[2]} {
		f := openFile(t, n, a.Ino)
		readers.Go(func() {
			seen := int64(0)
			for !over.Load() {
				got, err := n.Client.Getattr(ctx, a.Ino)
				if err != nil || got.Size < seen {
					t.Errorf("size %d, %v after %d", got.Size, err, seen)
					return
				}
				seen = got.Size
				b := make([]byte, seen)
				m, err := f.Read(ctx, b, 0, fsclient.ReadOpts{})
				if err == nil {
					_, err = records(b[:m], false)
				}
				if err != nil {
					t.Errorf("of %d bytes: %v", m, err)
					return
				}
			}
			closeFile(t, f)
		})
	}
	appendAll(t, c, a.Ino, writers, per, func() {})
	over.Store(true)
	readers.Wait()
	for _, n := range c.Nodes {
		wantRecords(t, n, "log", writers, per)
	}
}

// TestAppendsAndRestart: the home of a file may restart during appends: no two nodes get the same offset.
func TestAppendsAndRestart(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	const writers, per = 6, 150
	a := put(t, c.Nodes[1], metadata.RootIno, "log", nil, metadata.Layout{Kind: metadata.Local, Node: 3})
	nodes := c.Nodes
	c.Nodes = slices.Clone(nodes[1:]) // the writers
	appendAll(t, c, a.Ino, writers, per, func() {
		c.Nodes = nodes
		for range 2 {
			Eventually(t, "something is appended", func() bool {
				got, err := c.Nodes[0].Meta().Getattr(context.Background(), a.Ino)
				return err == nil && got.Size > 10_000
			})
			c.Kill(t, 0)
			c.Revive(t, 0)
		}
	})
	wantRecords(t, c.Nodes[2], "log", writers, per)
}

// TestAppendDies: an append whose node dies does not block or damage other appends.
func TestAppendDies(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	a := put(t, c.Nodes[1], metadata.RootIno, "log", nil, metadata.Layout{Kind: metadata.Local, Node: 1})
	f := openFile(t, c.Nodes[2], a.Ino)
	dead := metadata.Holder{Node: 3, Run: c.Nodes[3].Run()}
	if _, err := c.Nodes[0].Meta().(metadata.Opens).Append(ctx, dead, metadata.Append{Ino: a.Ino, Seq: 1 << 40, Len: 100}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Append(ctx, []byte("after")); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Nodes[1].Client.Getattr(ctx, a.Ino); err != nil || got.Size != 0 {
		t.Errorf("size %d, %v while an append is under way", got.Size, err)
	}
	c.Cut(3)
	var got metadata.Attr
	var err error
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("size %d, %v; nodes: %+v", got.Size, err, c.Nodes[0].View().Map.Nodes)
		}
	})
	Eventually(t, "all is seen when the node is given up", func() bool {
		_ = f.Flush(ctx) // it blocks for a while
		got, err = c.Nodes[1].Client.Getattr(ctx, a.Ino)
		return err == nil && got.Size == 105
	})
	closeFile(t, f)
	b, err := live(c.Nodes[1], "log")
	if err != nil || !bytes.Equal(b, append(make([]byte, 100), "after"...)) {
		t.Errorf("%q, %v", b, err)
	}
}

// TestAppendCosts: an append costs one metadata call, and none if the home is this node; only the end costs a call to
// report completion.
func TestAppendCosts(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 2})
	ctx := context.Background()
	const n = 200
	for node, most := range map[int]int64{0: 0, 1: n + n/4} { // some extra calls on a slow machine
		name := fmt.Sprint("log", node)
		a := put(t, c.Nodes[node], metadata.RootIno, name, nil, metadata.Layout{Kind: metadata.Local, Node: metadata.NodeID(node)})
		f := openFile(t, c.Nodes[node], a.Ino)
		before := c.Nodes[node].Client.Stats()
		for k := range n {
			if _, err := f.Append(ctx, record(node, k)); err != nil {
				t.Fatal(err)
			}
		}
		closeFile(t, f)
		after := c.Nodes[node].Client.Stats()
		if got := after.MetaRemote - before.MetaRemote; got > most {
			t.Errorf("node %d: %d calls for %d appends", node, got, n)
		}
		if after.WriteRemote != before.WriteRemote {
			t.Errorf("node %d wrote to another node", node)
		}
	}
}

// TestAppendAndTruncate: a log that is truncated during appends consists of whole records, from its start.
func TestAppendAndTruncate(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	a := put(t, c.Nodes[1], metadata.RootIno, "log", nil, metadata.Layout{})
	var over atomic.Bool
	var cutter sync.WaitGroup
	cuts := 0
	cutter.Go(func() {
		for !over.Load() {
			got, err := c.Nodes[2].Client.Getattr(ctx, a.Ino)
			if err == nil && got.Size > 20_000 {
				_, err = c.Nodes[2].Client.Truncate(ctx, a.Ino, 0)
				cuts++
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	appendAll(t, c, a.Ino, 6, 100, func() {})
	over.Store(true)
	cutter.Wait()
	if cuts == 0 {
		t.Error("the file was never cut")
	}
	b, err := live(c.Nodes[3], "log")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := records(b, true); err != nil {
		t.Error(err)
	}
}
