package fsclient_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/metadatatest"
)

// member is a client that also removes orphans at their homes.
type member struct {
	*fsclient.Client
	j *job
}

func (m member) Reap(ctx context.Context, ino metadata.Ino) error {
	return m.j.homes[ino.Home()].Reap(ctx, ino)
}

// TestStore runs the suite on one node, and on several, where most operations involve
// another node.
func TestStore(t *testing.T) {
	for _, nodes := range []int{1, 3, 4} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			metadatatest.Run(t, func(t *testing.T) metadatatest.Store {
				j := startJob(t, nodes, true)
				return member{j.clients[nodes/2], j}
			})
		})
	}
}

func TestXattrsOfThreeNodes(t *testing.T) {
	metadatatest.RunXattrs(t, func(t *testing.T) metadatatest.XattrStore {
		j := newJob(t, 3)
		return member{j.clients[1], j}
	})
}
