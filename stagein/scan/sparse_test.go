package scan_test

import (
	"archive/tar"
	"context"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestSparseIsReadOnce: a tar with a sparse member is always staged in a single pass, and gets no index.
func TestSparseIsReadOnce(t *testing.T) {
	r := stageintest.Rand(t)
	stageintest.SparseTar(t, stageintest.HoleyFiles(r), func(t *testing.T, archive []byte) {
		want, err := stageintest.TwinTar(archive)
		stageintest.NoError(t, err)
		for _, stripe := range []int64{1 << 20, 4096} {
			j := jobtest.TarJob(archive, 3)
			j.Opts, j.Stripe = stagein.Options{Fill: stagein.Order{Kind: stagein.OrderSource}, Index: stagein.IndexBeside}, stripe
			got, err := j.Run(context.Background())
			stageintest.NoError(t, err)
			stageintest.CheckTree(t, got, want)
			if j.Scanned != nil || j.FS.Nodes[j.Path+scan.Beside] != nil {
				t.Errorf("scanned %+v", j.Scanned)
			}
			if read := j.FS.Read.Load(); read != j.Sum.SourceBytes {
				t.Errorf("%d bytes were read, %d counted", read, j.Sum.SourceBytes)
			}
		}
	})
}

// TestSparseHasToFit: a tar with a sparse member is refused, with what to do, if it does not fit as a whole or if tars
// inside it are to be unpacked.
func TestSparseHasToFit(t *testing.T) {
	r := stageintest.Rand(t)
	stageintest.SparseTar(t, stageintest.HoleyFiles(r), func(t *testing.T, archive []byte) {
		j := jobtest.TarJob(archive, 2)
		j.Free = func(metadata.NodeID) (int64, bool) { return scan.LeastSpare + 10<<10, true }
		if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, j.Path, "capacity=", "without --sparse", "no space left") {
			t.Errorf("%v, want a refusal", err)
		}
		j = jobtest.TarJob(archive, 2)
		j.Opts.Unpack = stagein.UnpackNested
		if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, j.Path, "unpack=nested", "without --sparse") {
			t.Errorf("%v, want a refusal", err)
		}
		stored := stageintest.AsSparse(stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{stageintest.SparseMember(r, "inner.tar")}))
		j = jobtest.TarJob(stored, 2)
		j.Opts.Unpack = stagein.UnpackNested
		if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, j.Path, `"inner.tar"`, "without --sparse") {
			t.Errorf("a tar that is stored with holes: %v, want a refusal", err)
		}
	})
}
