package fsclient_test

import (
	"bytes"
	"context"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient/clienttest"
	"github.com/bivouacfs/bivouac/metadata"
)

// cutHome loses the connection when a size is to be set.
type cutHome struct{ *clienttest.Home }

func (h cutHome) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	if c.Set&metadata.SetSize != 0 {
		return metadata.Attr{}, syscall.EHOSTUNREACH
	}
	return h.Home.Setattr(ctx, ino, c)
}

// TestFailedTruncateIsANewVersion: a truncate that has cut the data and fails then is a change of the file for all nodes.
func TestFailedTruncateIsANewVersion(t *testing.T) {
	j := newJob(t, 2)
	a := create(t, j.clients[0], metadata.RootIno, "f", 0)
	f := open(t, j.clients[0], a.Ino)
	write(t, f, pattern(100_000), 0)
	closed(t, f)
	before, err := j.clients[1].Getattr(ctx, a.Ino)
	if err != nil {
		t.Fatal(err)
	}
	j.meta[0] = cutHome{j.homes[0]}
	if _, err := j.client(t, 1, nil).Truncate(ctx, a.Ino, 10); err == nil {
		t.Fatal("truncate succeeded")
	}
	if got := read(t, j.clients[1], a.Ino); bytes.Equal(got, pattern(100_000)) {
		t.Fatal("nothing was cut")
	}
	eventually(t, "the file has a new version", func() bool {
		after, err := j.clients[1].Getattr(ctx, a.Ino)
		return err == nil && after.Ctime > before.Ctime
	})
}
