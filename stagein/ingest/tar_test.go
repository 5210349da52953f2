package ingest_test

import (
	"archive/tar"
	"context"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// checkTar stages archive with n nodes, compares the tree with the twin and returns the number of bytes read.
func checkTar(t *testing.T, archive []byte, nodes int, set ...func(*jobtest.Job)) int64 {
	t.Helper()
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatalf("twin: %v", err)
	}
	j := jobtest.TarJob(archive, nodes)
	for _, f := range set {
		f(j)
	}
	got, err := j.Run(context.Background())
	if err != nil {
		t.Fatalf("%d nodes: %v", nodes, err)
	}
	stageintest.CheckTree(t, got, want)
	var bytes, files int64
	for _, e := range want {
		bytes += e.Size
		if e.Link == "" && e.Mode&0o170000 == 0o100000 {
			files++
		}
	}
	read := j.FS.Read.Load()
	if j.Sum.SourceBytes != read || j.Sum.Bytes != bytes || j.Sum.Files != files || !j.Sum.Done || j.Sum.SourceTotal != int64(len(archive)) {
		t.Errorf("%d nodes: progress %+v, want %d source bytes, %d bytes, %d files", nodes, j.Sum, read, bytes, files)
	}
	if j.Sum.Again == 0 && read != int64(len(archive)) {
		t.Errorf("%d nodes: %d bytes were read of an archive of %d", nodes, read, len(archive))
	}
	return read
}

func TestTarEqualsTwin(t *testing.T) {
	r := stageintest.Rand(t)
	again := 0
	for i := range 24 {
		format := []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX}[i%3]
		archive := stageintest.WriteTar(t, format, stageintest.RandomMembers(r, format, 1+r.IntN(60)))
		for nodes := 1; nodes <= 7; nodes++ {
			if read := checkTar(t, archive, nodes); read != int64(len(archive)) {
				again++
			}
		}
	}
	// Random bytes contain no headers, and guessing the member's end covers a boundary between extended headers and
	// their member.
	if again > 0 {
		t.Errorf("%d of 168 were read again", again)
	}
}
