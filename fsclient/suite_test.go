package fsclient_test

import (
	"context"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/metadatatest"
)

func TestStoreOfOneNode(t *testing.T) {
	metadatatest.Run(t, func(t *testing.T) metadata.Store { return newJob(t, 1).clients[0] })
}

// TestStoreOfThreeNodes runs the suite where most operations concern two nodes.
func TestStoreOfThreeNodes(t *testing.T) {
	metadatatest.Run(t, func(t *testing.T) metadata.Store {
		return turns{Client: newJob(t, 3).clients[1], t: t}
	})
}

// turns exchanges by three renames what the client refuses to exchange.
type turns struct {
	*fsclient.Client
	t *testing.T
}

func (s turns) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	if r.Flags != metadata.RenameExchange || r.Dir.Home() == r.NewDir.Home() {
		return s.Client.Rename(ctx, r)
	}
	if _, err := s.Lookup(ctx, r.Dir, r.Name); err != nil {
		return nil, err
	}
	if _, err := s.Lookup(ctx, r.NewDir, r.NewName); err != nil {
		return nil, err
	}
	aside := strings.Repeat("x", 100)
	for _, m := range []metadata.Rename{
		{Dir: r.Dir, Name: r.Name, NewDir: r.Dir, NewName: aside},
		{Dir: r.NewDir, Name: r.NewName, NewDir: r.Dir, NewName: r.Name},
		{Dir: r.Dir, Name: aside, NewDir: r.NewDir, NewName: r.NewName},
	} {
		if _, err := s.Client.Rename(ctx, m); err != nil {
			return nil, err
		}
	}
	return nil, nil
}
