package fill_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestStagedIsFetchedAgain: files staged in a single pass are present when the dataset is published and are not read
// again; the files of a lost node are fetched by the other nodes, whatever the source is.
func TestStagedIsFetchedAgain(t *testing.T) {
	for _, c := range []struct {
		name    string
		sources []string
		o       stagein.Options
		stripe  int64
	}{
		{"a tar", []string{"a.tar"}, stagein.Options{}, 1 << 20},
		{"a tar with striped members", []string{"a.tar"}, stagein.Options{}, 1000},
		{"a compressed tar", []string{"a.tar.gz"}, stagein.Options{}, 1 << 20},
		{"a compressed tar with striped members", []string{"a.tar.gz"}, stagein.Options{}, 1000},
		{"a zip archive", []string{"a.zip"}, stagein.Options{}, 1 << 20},
		{"a zip archive with striped members", []string{"a.zip"}, stagein.Options{}, 1000},
		{"several", []string{"a.tar", "b.tar.gz", "c.zip"}, stagein.Options{Unpack: stagein.UnpackApart}, 1 << 20},
		{"what could be read", []string{"a.tar", "b.tar.gz"}, stagein.Options{OnError: stagein.OnErrorSkip}, 1 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := jobtest.NewRack(t, 4, "/src/*", c.o)
			s.Stripe = c.stripe
			for i, name := range c.sources {
				under := ""
				if c.o.Unpack == stagein.UnpackApart {
					under = name[:1]
				}
				s.Archive(name, fmt.Sprintf("m%d-", i), 60, under)
			}
			s.Check()
			if s.Plan == nil {
				t.Fatal("was scanned")
			}
			files, err := stageintest.FilesOfParts(s.Records, s.Sums)
			if err != nil {
				t.Fatal(err)
			}
			m, dir, read := stageintest.ClusterMap(4), t.TempDir(), s.FS.Read.Load()
			for range 2 { // the daemons start, and restart
				s.FillStaged(m, files, dir)
			}
			if again := s.FS.Read.Load() - read; again != 0 {
				t.Errorf("%d bytes were read again", again)
			}
			s.Holds(m, files)
			for k := range s.Target.Objects {
				if k.Node == 2 {
					delete(s.Target.Objects, k)
				}
			}
			m = m.WithState(2, cluster.Down, "")
			s.FillStaged(m, files, dir)
			s.Holds(m, files)
			if again := s.FS.Read.Load() - read; again == 0 {
				t.Error("nothing was read again")
			}
			read = s.FS.Read.Load()
			s.FillStaged(m, files, dir)
			if again := s.FS.Read.Load() - read; again != 0 {
				t.Errorf("%d bytes were read a third time", again)
			}
		})
	}
}

// TestPackedOnce: all readers of files in a compressed tar wait for the same pass over the tar.
func TestPackedOnce(t *testing.T) {
	s := jobtest.NewRack(t, 2, "/src/a.tar.gz", stagein.Options{})
	s.Archive("a.tar.gz", "m", 80, "")
	s.Check()
	files, err := stageintest.FilesOfParts(s.Records, s.Sums)
	if err != nil {
		t.Fatal(err)
	}
	m := stageintest.ClusterMap(2).WithState(1, cluster.Down, "")
	f, err := s.Filler(m, 0, &scan.Scanned{Origins: s.Plan.Origins}, files, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mine, err := f.List(m)
	if err != nil || len(mine) < 10 {
		t.Fatalf("%d pieces, %v", len(mine), err)
	}
	read := s.FS.Read.Load()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	errs := make(chan error, len(mine))
	for _, p := range mine {
		go func() { errs <- f.Need(ctx, p.Ino, 0, 1) }()
	}
	for range mine {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n, size := s.FS.Read.Load()-read, int64(len(s.FS.Nodes["/src/a.tar.gz"].Data)); n > size {
		t.Errorf("%d bytes were read of %d, for %d pieces", n, size, len(mine))
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	s.Holds(m, files)
}
