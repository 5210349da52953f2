package testcluster

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

// Check fails the test unless the whole tree, over all nodes, is consistent: every entry has its inode, every inode
// its names, link counts and parents are correct, and no transaction is unfinished. The tree must not change
// meanwhile; Check waits a moment for pending work to finish.
func (c *Cluster) Check(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		wrong := c.wrong(ctx, t)
		if len(wrong) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the tree is damaged:\n%s", strings.Join(wrong, "\n"))
		case <-tick.C:
		}
	}
}

// wrong returns the inconsistencies of the tree now.
func (c *Cluster) wrong(ctx context.Context, t testing.TB) []string {
	t.Helper()
	var all []metadata.Inventory
	for _, n := range c.Nodes {
		if err := n.Home().ReportShards(ctx); err != nil {
			return []string{err.Error()}
		}
		inventory, err := n.Home().Inventory(ctx)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, inventory)
	}
	return txn.Check(all)
}
