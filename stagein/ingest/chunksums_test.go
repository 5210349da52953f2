package ingest_test

import (
	"archive/tar"
	"context"
	"hash/crc32"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// wantCRCs is a naive twin of chunkSums.
func wantCRCs(b []byte, chunk int) (sums []uint32) {
	for ; len(b) > 0; b = b[min(chunk, len(b)):] {
		sums = append(sums, crc32.Checksum(b[:min(chunk, len(b))], archive.Castagnoli))
	}
	return sums
}

func sameCRCs(got manifest.CRCs, want []uint32) bool {
	for i, crc := range want {
		if i >= got.Len() || got.At(i) != crc {
			return false
		}
	}
	return got.Len() == len(want)
}

// TestChunkSums: the chunks of a file have the checksums of its bytes, however the data is split into pieces; holes
// count as zeros.
func TestChunkSums(t *testing.T) {
	r := stageintest.Rand(t)
	l := metadata.Layout{Kind: metadata.Striped, ChunkSize: 64 << 10}
	for range 200 {
		size := r.IntN(500_000)
		if r.IntN(4) == 0 {
			size = size >> 16 << 16
		}
		file := make([]byte, size)
		c := archive.NewChunkCRCs(l, int64(size))
		for pos := 0; pos < size; {
			n := min(1+r.IntN(200_000), size-pos)
			if r.IntN(3) > 0 {
				copy(file[pos:], stageintest.RandBytes(r, n))
				c.Write(file[pos:pos+n], int64(pos))
			}
			pos += n
		}
		if got, want := c.End(int64(size)), wantCRCs(file, 64<<10); !sameCRCs(got, want) {
			t.Fatalf("%d bytes: %x, want %x", size, got, want)
		}
	}
	if c := archive.NewChunkCRCs(l, 64<<10*manifest.MaxChunks); c == nil {
		t.Error("there are no sums of as many chunks as there may be")
	}
	for _, c := range []*archive.ChunkCRCs{archive.NewChunkCRCs(l, 64<<10*manifest.MaxChunks+1), archive.NewChunkCRCs(metadata.Layout{Kind: metadata.Local}, 5)} {
		if c.Write([]byte("x"), 0); c != nil || c.End(5) != "" {
			t.Error("there are sums")
		}
	}
}

// TestPackedChunkSums: the records of striped files of a compressed tar have the checksums of their chunks, also for a
// file with holes; other records have none.
func TestPackedChunkSums(t *testing.T) {
	r := stageintest.Rand(t)
	holes := stageintest.SparseMember(r, "holes")
	plain := stageintest.AsSparse(stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{stageintest.TarFile("small", stageintest.RandBytes(r, 900)), stageintest.TarFile("large", stageintest.RandBytes(r, stagein.StripeChunk+100)), holes}))
	want, err := stageintest.TwinTar(plain)
	stageintest.NoError(t, err)
	j := jobtest.TarJob(stageintest.PackGzip(t, plain), 3)
	j.Stripe = 1000
	got, err := j.Run(context.Background())
	stageintest.NoError(t, err)
	stageintest.CheckTree(t, got, want)
	files, err := stageintest.FilesOfParts(j.Records, j.Sums)
	stageintest.NoError(t, err)
	seen := 0
	for _, rec := range files.Records {
		var sums []uint32
		if rec.Attr.Layout.Kind == metadata.Striped && rec.Attr.Mode&source.TypeMask == source.TypeRegular {
			sums = wantCRCs([]byte(want[rec.Path].Data), stagein.StripeChunk)
			seen++
		}
		if !sameCRCs(rec.Chunks, sums) {
			t.Errorf("%q has the sums %x, want %x", rec.Path, rec.Chunks, sums)
		}
	}
	if seen != 2 {
		t.Errorf("%d files are striped", seen)
	}
}
