package testcluster

import (
	"context"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/metadatatest"
)

// TestWideStore: a tree whose directories are wide from a few entries on is a
// tree like any other.
func TestWideStore(t *testing.T) {
	t.Parallel()
	metadatatest.Run(t, func(t *testing.T) metadatatest.Store {
		c := Start(t, Config{SplitAt: 3})
		return told{Client: c.Nodes[1].Client, c: c, t: t}
	})
}

// told waits for what sections tell their homes a moment later, and keeps files
// open that it unlinks, so that they can be asked about.
type told struct {
	*fsclient.Client
	c *Cluster
	t *testing.T
}

// keep opens what may lose its last name, if it is there.
func (s told) keep(ctx context.Context, dir metadata.Ino, name string) {
	if e, err := s.Lookup(ctx, dir, name); err == nil && e.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		_, _ = s.Open(ctx, e.Ino) // what another one has removed is not asked about
	}
}

// Unlink is metadata.Namespace.
func (s told) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	s.keep(ctx, dir, name)
	return s.Client.Unlink(ctx, dir, name)
}

// Rename is metadata.Namespace.
func (s told) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	s.keep(ctx, r.NewDir, r.NewName)
	return s.Client.Rename(ctx, r)
}

// Reap removes an orphan that this node has open, which a home never does: it recalls no lease for it.
func (s told) Reap(ctx context.Context, ino metadata.Ino) error {
	err := s.c.Nodes[ino.Home()].Home().Reap(ctx, ino)
	s.Revoke([]metadata.LeaseKey{{Ino: ino}})
	return err
}

// Getattr is metadata.Inodes.
func (s told) Getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	s.t.Helper()
	for _, n := range s.c.Nodes {
		Eventually(s.t, "sections are settled", func() bool { return n.Home().ReportShards(ctx) == nil })
	}
	return s.Client.Getattr(ctx, ino)
}
