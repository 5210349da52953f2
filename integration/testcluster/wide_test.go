package testcluster

import (
	"context"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/metadatatest"
)

// TestWideStore: directories that become wide at a few entries pass the tests of any tree.
func TestWideStore(t *testing.T) {
	t.Parallel()
	metadatatest.Run(t, func(t *testing.T) metadatatest.Store {
		c := Start(t, Config{SplitAt: 3})
		return settled{Client: c.Nodes[1].Client, c: c, t: t}
	})
}

// settled waits until shards have reported to their homes, and keeps the files it unlinks open, so that their
// attributes can be read.
type settled struct {
	*fsclient.Client
	c *Cluster
	t *testing.T
}

// keep opens a file that may lose its last name, if it exists.
func (s settled) keep(ctx context.Context, dir metadata.Ino, name string) {
	if e, err := s.Lookup(ctx, dir, name); err == nil && e.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		_, _ = s.Open(ctx, e.Ino) // another node may have removed it
	}
}

// Unlink implements metadata.Namespace.
func (s settled) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	s.keep(ctx, dir, name)
	return s.Client.Unlink(ctx, dir, name)
}

// Rename implements metadata.Namespace.
func (s settled) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	s.keep(ctx, r.NewDir, r.NewName)
	return s.Client.Rename(ctx, r)
}

// Reap removes an orphan that this node has open. A home never does that, and recalls no lease for it.
func (s settled) Reap(ctx context.Context, ino metadata.Ino) error {
	err := s.c.Nodes[ino.Home()].Home().Reap(ctx, ino)
	s.Revoke([]metadata.LeaseKey{{Ino: ino}})
	return err
}

// Getattr implements metadata.Inodes.
func (s settled) Getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	s.t.Helper()
	for _, n := range s.c.Nodes {
		Eventually(s.t, "shards have reported", func() bool { return n.Home().ReportShards(ctx) == nil })
	}
	return s.Client.Getattr(ctx, ino)
}
