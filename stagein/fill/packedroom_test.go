package fill_test

import (
	"archive/tar"
	"context"
	"fmt"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestPackedKeepsRestartPoints: a compressed tar with restart points is staged, every byte is read once, and the
// points are kept with the dataset; of one that has only its beginning none are.
func TestPackedKeepsRestartPoints(t *testing.T) {
	r := stageintest.Rand(t)
	for _, c := range append(stageintest.SeekableCodecs[:len(stageintest.SeekableCodecs):len(stageintest.SeekableCodecs)], stageintest.GzipOneMember, stageintest.Codecs[1]) {
		t.Run(c.Name, func(t *testing.T) {
			archive := c.Pack(t, stageintest.ManySmall(t, r, 150, 18_000))
			want, err := stageintest.TwinPacked(c, archive)
			stageintest.NoError(t, err)
			j := jobtest.SeekableJob(archive, 1<<30)
			got, err := j.Run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			stageintest.CheckTree(t, got, want)
			points, err := unpack.ParseRestartPoints(j.Plan.Origins.Sources[0].RestartPoints)
			if n, single := len(points), c.Name == stageintest.GzipOneMember.Name || c.Name == "zstd"; err != nil || single != (n == 0) || n == 1 {
				t.Errorf("%d restart points, %v", n, err)
			}
			for i, p := range points {
				if i > 0 && p.Off-points[i-1].Off < j.Lim.Apart {
					t.Errorf("restart points %v and %v are less than %d bytes apart", points[i-1], p, j.Lim.Apart)
				}
			}
			if j.Sum.SourceBytes > int64(len(archive))+64<<10 {
				t.Errorf("%d bytes were read of %d", j.Sum.SourceBytes, len(archive))
			}
		})
	}
}

// TestPackedDoesNotFit: a compressed tar for which the nodes have no room is refused with what is needed, what there is and
// what to do, whatever its format.
func TestPackedDoesNotFit(t *testing.T) {
	r := stageintest.Rand(t)
	const each = 128 << 10
	for _, c := range append(stageintest.SeekableCodecs[:len(stageintest.SeekableCodecs):len(stageintest.SeekableCodecs)], stageintest.Codecs...) {
		t.Run(c.Name, func(t *testing.T) {
			j := jobtest.SeekableJob(c.Pack(t, stageintest.ManySmall(t, r, 80, 12_000)), each)
			j.Target = stageintest.TightTarget(each)
			_, err := j.Run(context.Background())
			if !stageintest.ErrorHas(err, "/src/a.tar", " needs room for ", "128.0 KiB", "capacity=", "a plain tar or a zip archive", "unpack=no", "no space left") {
				t.Errorf("%v, want a refusal", err)
			}
		})
	}
}

// TestPackedReadThroughIsBounded: of a compressed tar, only files near a restart point are read through.
func TestPackedReadThroughIsBounded(t *testing.T) {
	r := stageintest.Rand(t)
	var members []stageintest.Member
	for i := range 40 {
		members = append(members, stageintest.TarFile(fmt.Sprint("f", i), stageintest.RandBytes(r, 100_000)))
	}
	plain := stageintest.WriteTar(t, tar.FormatGNU, members)
	for name, x := range map[string]struct {
		archive []byte
		want    bool
	}{
		"frames":    {stageintest.ZstdUnsizedFrames(t, plain, 50_000), true},
		"one frame": {stageintest.Codecs[1].Pack(t, plain), false},
	} {
		f, all := overflowing(t, x.archive, &flipFS{}, stageintest.QuietLog())
		for _, rec := range all {
			if got := f.Reachable(rec.From); got != x.want {
				t.Errorf("%s: %s can be read through: %v, want %v", name, rec.Path, got, x.want)
			}
		}
	}
}
