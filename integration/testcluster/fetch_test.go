package testcluster

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestFetchAtOnce: many concurrent readers of the same remote files each get all bytes.
func TestFetchAtOnce(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	m := files(400, 20)
	src := filepath.Join(t.TempDir(), "set.tar")
	writeTar(t, src, m)
	ctl := daemon.NewCtl(c.Nodes[leads].Job.CtlSocket())
	ctx := context.Background()
	if _, err := ctl.StageIn(ctx, job.Dataset{Source: src, Name: "set"}); err != nil {
		t.Fatal(err)
	}
	if ds := c.Dataset(t, leads, "set"); ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	if _, err := ctl.Verify(ctx, dataset.VerifySpec{Name: "set", SHA256: true}); err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := ctl.Sums(ctx, "set", &want); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(want.String(), "\n"); n != len(m) {
		t.Fatalf("%d sums of %d files", n, len(m))
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 8 {
				var got bytes.Buffer
				if err := ctl.Sums(ctx, "set", &got); err != nil {
					t.Error(err)
				} else if !bytes.Equal(got.Bytes(), want.Bytes()) {
					t.Errorf("%d bytes of sums, want %d, or others", got.Len(), want.Len())
				}
			}
		})
	}
	wg.Wait()
}
