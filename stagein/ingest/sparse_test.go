package ingest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestTarSparse: sparse members in every format of GNU tar have the bytes that archive/tar reads, with any number of
// nodes, cut anywhere, and also when striped.
func TestTarSparse(t *testing.T) {
	r := stageintest.Rand(t)
	made := func(dir string) error {
		var many []int64
		for i := range int64(60) { // more entries than any header has room for
			many = append(many, i*8192)
		}
		for name, c := range map[string]struct {
			size int64
			at   []int64
		}{
			"a-plain": {3000, []int64{0, 700, 1400, 2100, 2800}}, "b-front": {20_000, []int64{0}}, "c-end": {20_000, []int64{19_700}},
			"d-middle": {40_000, []int64{9000, 20_480}}, "e-all": {30_000, nil}, "f-many": {60*8192 + 5, many}, "g-empty": {0, nil},
			strings.Repeat("long", 60): {9000, []int64{8192}},
		} {
			if err := stageintest.HoleyFile(filepath.Join(dir, name), r, c.size, c.at...); err != nil {
				return err
			}
		}
		return nil
	}
	stageintest.SparseTar(t, made, func(t *testing.T, archive []byte) {
		if len(archive) > 400_000 {
			t.Fatalf("the archive has %d bytes: it is not sparse", len(archive))
		}
		for _, stripe := range []int64{1 << 20, 4096} {
			for nodes := 1; nodes <= 7; nodes++ {
				checkTar(t, archive, nodes, func(j *jobtest.Job) { j.Stripe = stripe })
			}
		}
	})
}

// TestTarSparseHasHoles: of a hole only the last byte of an object is stored, and the checksum of a huge hole costs
// nothing.
func TestTarSparseHasHoles(t *testing.T) {
	r := stageintest.Rand(t)
	const size = 1 << 40
	huge := func(dir string) error { return stageintest.HoleyFile(filepath.Join(dir, "huge"), r, size, 5<<30) }
	stageintest.SparseTar(t, huge, func(t *testing.T, archive []byte) {
		j := jobtest.TarJob(archive, 3)
		j.Discard, j.Stripe = true, 64<<20
		var stored atomic.Int64
		j.Target = &stageintest.MemTarget{OnPut: func(_ metadata.NodeID, _ metadata.Ino, n int) error {
			stored.Add(int64(n))
			return nil
		}}
		if _, err := j.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := stored.Load(); n == 0 || n > 64<<10 || j.Sum.Bytes != size {
			t.Errorf("%d bytes were stored, %d counted", n, j.Sum.Bytes)
		}
	})
}

// TestTarSparseRefuses: an inconsistent map is damage, and a size larger than any disk is refused before data is
// stored.
func TestTarSparseRefuses(t *testing.T) {
	archive := func(records map[string]string, data string) []byte {
		h := tar.Header{Name: "holes", Typeflag: tar.TypeReg, PAXRecords: map[string]string{}}
		for k, v := range records {
			h.PAXRecords[stageintest.NotSparse+k] = v
		}
		return stageintest.AsSparse(stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{{Header: h, Data: []byte(data)}, stageintest.TarFile("after", nil)}))
	}
	for name, c := range map[string]struct {
		records map[string]string
		data    string
		want    string
	}{
		"order":    {map[string]string{"size": "100", "map": "50,5,10,5"}, "0123456789", "not sorted"},
		"outside":  {map[string]string{"size": "100", "map": "95,10"}, "0123456789", "exceeds the file"},
		"overflow": {map[string]string{"size": "100", "map": "9223372036854775807,10"}, "0123456789", "exceeds the file"},
		"odd":      {map[string]string{"size": "100", "map": "95"}, "01234", "without a length"},
		"less":     {map[string]string{"size": "100", "map": "0,5"}, "0123456789", "describes 5 bytes"},
		"bomb":     {map[string]string{"size": "9223372036854775807", "map": "0,10"}, "0123456789", "is the most"},
		"negative": {map[string]string{"size": "-1", "map": "0,10"}, "0123456789", "GNU.sparse.size"},
		"version":  {map[string]string{"major": "7", "minor": "0", "size": "10"}, "0123456789", "unknown"},
		"text":     {map[string]string{"major": "1", "minor": "0", "realsize": "10"}, "no number\n", "no number"},
		"endless":  {map[string]string{"major": "1", "minor": "0", "realsize": "10"}, strings.Repeat("1", 2000), "no number"},
		"bigmap":   {map[string]string{"major": "1", "minor": "0", "realsize": "10"}, "900000000\n", "extents"},
	} {
		t.Run(name, func(t *testing.T) { stageBad(t, archive(c.records, c.data), `holes"`, c.want, "at offset 0") })
	}
}

// TestTarSparseStar reads a map as written by star, since no program installed here writes one.
func TestTarSparseStar(t *testing.T) {
	pair := func(b []byte, off, n int) { copy(b, fmt.Sprintf("%011o %011o ", off, n)) }
	for _, extended := range []bool{false, true} {
		archive := stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{stageintest.TarFile("star", []byte("01234567890")), stageintest.TarFile("z", []byte("z"))})
		h := archive[:512]
		h[156] = 'S'
		copy(h[452:], fmt.Sprintf("%011o ", 5000))
		copy(h[508:], "tar\x00")
		var ext []byte
		if extended {
			ext = make([]byte, 512)
			pair(ext, 1000, 5)
			pair(ext[24:], 3000, 6)
			h[355] = 1
		} else {
			pair(h[356:], 1000, 5)
			pair(h[380:], 3000, 6)
		}
		stageintest.FixSum(h)
		archive = append(append(bytes.Clone(h), ext...), archive[512:]...)
		want := make([]byte, 5000)
		copy(want[1000:], "01234")
		copy(want[3000:], "567890")
		for nodes := 1; nodes <= 3; nodes++ {
			got, err := jobtest.TarJob(archive, nodes).Run(context.Background())
			if err != nil || got["star"].Data != string(want) || got["z"].Data != "z" {
				t.Errorf("extended %v, %d nodes: %d bytes, z %q, %v", extended, nodes, len(got["star"].Data), got["z"].Data, err)
			}
		}
	}
}

// TestTarSparseTruncated: truncation at any place causes an error or yields a complete tree.
func TestTarSparseTruncated(t *testing.T) {
	r := stageintest.Rand(t)
	made := func(dir string) error {
		return stageintest.HoleyFile(filepath.Join(dir, "holes"), r, 90_000, 0, 9000, 20_480, 40_960, 61_440, 89_500)
	}
	stageintest.SparseTar(t, made, func(t *testing.T, archive []byte) {
		for cut := 512; cut < len(archive); cut += 1 + r.IntN(400) {
			got, err := jobtest.TarJob(archive[:cut], 1+r.IntN(4)).Run(context.Background())
			if err != nil {
				continue
			}
			want, err := stageintest.TwinTar(archive[:cut])
			if err != nil {
				t.Errorf("cut at %d: staged, but archive/tar says %v", cut, err)
				continue
			}
			stageintest.CheckTree(t, got, want)
		}
	})
}

func TestZerosCRC(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 511, 4096, 100_001} {
		if got, want := archive.ZerosCRC(int64(n)), crc32.Checksum(make([]byte, n), archive.Castagnoli); got != want {
			t.Errorf("zerosCRC(%d) = %08x, want %08x", n, got, want)
		}
	}
}

// TestSparseIsFetchedAgain: other nodes fetch a lost node's parts of sparse members, including holes, from a plain tar
// and from a compressed one.
func TestSparseIsFetchedAgain(t *testing.T) {
	r := stageintest.Rand(t)
	made := func(dir string) error {
		var errs []error
		for i := range 12 {
			size := int64(2000 + 9000*i)
			errs = append(errs, stageintest.HoleyFile(filepath.Join(dir, fmt.Sprint("f", i)), r, size, size/3&^4095, size/2&^4095, size-1500))
		}
		return errors.Join(append(errs, stageintest.HoleyFile(filepath.Join(dir, "none"), r, 50_000))...)
	}
	stageintest.SparseTar(t, made, func(t *testing.T, archive []byte) {
		for _, kind := range []string{"a.tar", "a.tar.gz", "a.tar.zst"} {
			for _, stripe := range []int64{1 << 20, 4096} {
				s := jobtest.NewRack(t, 4, "/src/"+kind, stagein.Options{})
				s.Stripe, s.Region = stripe, 1024
				b := archive
				if kind == "a.tar.gz" {
					b = stageintest.PackGzip(t, archive)
				}
				if kind == "a.tar.zst" {
					b = stageintest.ZstdUnsizedFrames(t, archive, 3000)
					s.Free = func(metadata.NodeID) (int64, bool) { return 1 << 30, true }
				}
				s.FS.Add(s.Path, source.TypeRegular|0o644, b)
				want, err := stageintest.TwinTar(archive)
				if err != nil {
					t.Fatal(err)
				}
				for path, e := range want {
					s.Want[path] = e.Data
				}
				got, err := s.Run(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				stageintest.CheckTree(t, got, want)
				files, err := stageintest.FilesOfParts(s.Records, s.Sums)
				if err != nil {
					t.Fatal(err)
				}
				for k := range s.Target.Objects {
					if k.Node == 2 {
						delete(s.Target.Objects, k)
					}
				}
				m, dir := stageintest.ClusterMap(4), t.TempDir()
				s.FillStaged(m, files, dir)
				m = m.WithState(2, cluster.Down, "")
				s.FillStaged(m, files, dir)
				s.Holds(m, files)
			}
		}
	})
}
