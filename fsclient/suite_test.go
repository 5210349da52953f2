package fsclient_test

import (
	"fmt"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/metadatatest"
)

// TestStore runs the suite on one node, and on several, where most operations involve
// another node.
func TestStore(t *testing.T) {
	for _, nodes := range []int{1, 3, 4} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			metadatatest.Run(t, func(t *testing.T) metadata.Store {
				return startJob(t, nodes, true).clients[nodes/2]
			})
		})
	}
}

func TestXattrsOfThreeNodes(t *testing.T) {
	metadatatest.RunXattrs(t, func(t *testing.T) metadatatest.XattrStore { return newJob(t, 3).clients[1] })
}
