package fsclient_test

import (
	"context"
	"io/fs"
	"os"
	"testing"

	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
)

// damagedStore has an object whose damage is detected when its link is made.
type damagedStore struct {
	*chunkstore.Store
	dropped bool
}

func (s *damagedStore) LinkWhole(ctx context.Context, ino metadata.Ino, f *os.File) error {
	s.dropped = true
	return s.Store.LinkWhole(ctx, ino, f)
}

func (s *damagedStore) Open(ino metadata.Ino) (*os.File, error) {
	if s.dropped {
		return nil, fs.ErrNotExist
	}
	return s.Store.Open(ino)
}

// TestLinkOfDamagedFile: a file that is dropped while it is linked leaves no link.
func TestLinkOfDamagedFile(t *testing.T) {
	j := newJob(t, 1)
	store, err := chunkstore.Open(chunkstore.Config{Dirs: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s := &damagedStore{Store: store}
	j.data[0] = s
	c := j.client(t, 0, nil)
	a := metadata.Attr{Ino: metadata.SealedIno(1, 0, 1), Size: 3, Layout: metadata.Layout{Kind: metadata.Local}}
	if err := s.WriteAt(ctx, a.Ino, []byte("abc"), 0); err != nil {
		t.Fatal(err)
	}
	if here, err := c.LinkIfWhole(ctx, &a); here || err != nil || s.Linked(a.Ino) {
		t.Errorf("LinkIfWhole = %v, %v; linked: %v, want no link", here, err, s.Linked(a.Ino))
	}
	if !s.dropped {
		t.Error("no link was made")
	}
}
