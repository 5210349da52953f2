package ingest_test

import (
	"archive/tar"
	"context"
	"fmt"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestFullInTheMiddle: when a node runs out of room during a stage-in, the message names the node, the room it needs
// and had, and what to do, for every kind of source and any number of readers.
func TestFullInTheMiddle(t *testing.T) {
	plain := jobtest.TooLarge(t)
	says := func(t *testing.T, j *jobtest.Job, want ...string) {
		t.Helper()
		j.Target = stageintest.TightTarget(jobtest.RoomEach)
		j.Free = func(metadata.NodeID) (int64, bool) { return 4 * jobtest.RoomEach, true }
		_, err := j.Run(context.Background())
		want = append(want, " is full: it had room for 1.2 MiB when the stage-in began, and got ", ": no space left on device", "give the job more nodes")
		if !stageintest.ErrorHas(err, want...) {
			t.Errorf("%v, want it to say %q", err, want)
		}
	}
	stageintest.EveryCodec(t, func(t *testing.T, c stageintest.Codec) {
		says(t, jobtest.TarJob(c.Pack(t, plain), 4), "unpack=no", "compressed offset")
	})
	t.Run("plain tar", func(t *testing.T) {
		j := jobtest.TarJob(plain, 4)
		says(t, j, fmt.Sprintf("got %s of 1.5 MiB", metadata.FormatBytes(int64(len(plain))/4)))
	})
	t.Run("several", func(t *testing.T) {
		j, r := jobtest.TarJob(nil, 4), stageintest.Rand(t)
		j.Path = "/src/*"
		j.FS.Add("/src", source.TypeDir|0o755, nil)
		delete(j.FS.Nodes, "/src/a.tar")
		for i := range 4 {
			var members []stageintest.Member
			for k := range 15 {
				members = append(members, stageintest.TarFile(fmt.Sprint(i, "/f", k), stageintest.RandBytes(r, 25_000)))
			}
			j.FS.Add(fmt.Sprintf("/src/%d.tgz", i), source.TypeRegular|0o644, stageintest.Codecs[0].Pack(t, stageintest.WriteTar(t, tar.FormatGNU, members)))
		}
		says(t, j, "unpack=no")
	})
}
