package fill_test

import (
	"cmp"
	"context"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestPackedDoesNotFit: a compressed tar that does not fit is refused, in every format, with the space needed, the
// space available and what to do.
func TestPackedDoesNotFit(t *testing.T) {
	r := stageintest.Rand(t)
	const each = 128 << 10
	for _, c := range append(stageintest.PartedCodecs[:len(stageintest.PartedCodecs):len(stageintest.PartedCodecs)], stageintest.Codecs...) {
		t.Run(c.Name, func(t *testing.T) {
			j := jobtest.PackedJob(c.Pack(t, stageintest.ManySmall(t, r, 80, 12_000)), each)
			j.Target = stageintest.TightTarget(each)
			_, err := j.Run(context.Background())
			if !stageintest.ErrorHas(err, "/src/a.tar", " needs room for ", "128.0 KiB", "capacity=", "a plain tar or a zip archive", "unpack=no", "no space left") {
				t.Errorf("%v, want a refusal", err)
			}
		})
	}
}

// lastIn returns the last file of an archive.
func lastIn(files []manifest.Record) metadata.Ino {
	return slices.MaxFunc(files, func(a, b manifest.Record) int { return cmp.Compare(a.From.Off, b.From.Off) }).Attr.Ino
}

// TestCompanionsAreFetching: files of a compressed tar that are unpacked along with another one are marked as being
// fetched although no reader waits for them: their partial data is not taken for a replica left by an earlier run.
func TestCompanionsAreFetching(t *testing.T) {
	f, files := overflowing(t, stageintest.PackGzip(t, stageintest.ManySmall(t, stageintest.Rand(t), 20, 12_000)), new(flipFS), stageintest.QuietLog())
	f.Config().Room = nil
	f.Config().Put = func(_ context.Context, ino metadata.Ino, _ []byte, _ int64) error {
		if !f.Fetching(fill.PieceID{Ino: ino}) {
			t.Errorf("%v is stored, and not on its way", ino)
		}
		return nil
	}
	stageintest.NoError(t, f.Need(t.Context(), lastIn(files), 0, 1))
	for _, r := range files {
		if p := (fill.PieceID{Ino: r.Attr.Ino}); f.Fetching(p) || !f.Present(p) {
			t.Errorf("%v is on its way %v, here %v", r.Attr.Ino, f.Fetching(p), f.Present(p))
		}
	}
}

// TestUnpackingLeavesReplicas: fetching a file of a compressed tar also stores the others, except those of which this
// node has a replica.
func TestUnpackingLeavesReplicas(t *testing.T) {
	r := stageintest.Rand(t)
	f, files := overflowing(t, stageintest.PackGzip(t, stageintest.ManySmall(t, r, 20, 12_000)), new(flipFS), stageintest.QuietLog())
	replica := func(ino metadata.Ino) bool { return ino.Seq()%2 == 0 }
	wanted := lastIn(files)
	cfg := f.Config()
	cfg.Room = nil
	cfg.MayStore = func(p fill.PieceID) bool { return !replica(p.Ino) }
	cfg.Put = func(_ context.Context, ino metadata.Ino, _ []byte, _ int64) error {
		if replica(ino) && ino != wanted {
			t.Errorf("%v is stored over its replica", ino)
		}
		return nil
	}
	stageintest.NoError(t, f.Need(t.Context(), wanted, 0, 1))
	for _, rec := range files {
		ino := rec.Attr.Ino
		if want := ino == wanted || !replica(ino); f.Stored(ino) != want {
			t.Errorf("%v is stored: %v, want %v", ino, !want, want)
		}
	}
}
