package stagein

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// tooLarge is a tar of half random bytes, more than 4 nodes have room for that have roomEach.
func tooLarge(t *testing.T) []byte {
	t.Helper()
	return stageintest.HalfRandomTar(t, 60)
}

const roomEach = 300 << 10

func hasRoom(metadata.NodeID) (int64, bool) { return roomEach, true }

// TestPackedRefusedEarly: a compressed tar for which there is no room is refused before
// a byte is copied, if it says how large it is, and after a few small reads.
func TestPackedRefusedEarly(t *testing.T) {
	plain := tooLarge(t)
	for _, c := range stageintest.Codecs {
		switch c.Name {
		case "gzip", "xz", "program gzip", "program pigz", "program xz", "program xz blocks":
		default:
			continue // says nothing of its size when it is written to a pipe
		}
		t.Run(c.Name, func(t *testing.T) {
			j := tarJob(c.Pack(t, plain), 4)
			for spill, advice := range map[Spill]string{SpillPFS: "unpack=no", SpillFail: "leave spill=fail out"} {
				if spill == SpillPFS && (!strings.Contains(c.Name, "xz") || strings.HasSuffix(c.Name, "blocks")) {
					continue // it may stay
				}
				j.free, j.opts.Spill = hasRoom, spill
				_, err := j.run(context.Background())
				if !stageintest.ErrorHas(err, "/src/a.tar", "n0 needs room for 35", "KiB and has 300.0 KiB", "1.5 MiB in all", "no space left", advice) {
					t.Errorf("spill=%s: %v, want a refusal", spill, err)
				}
			}
			if read := j.fs.Read.Load(); len(j.target.Objects) > 0 || read > 32<<10 {
				t.Errorf("%d objects were written, and %d bytes read, before it was refused twice", len(j.target.Objects), read)
			}
		})
	}
}

// TestPackedRefusedLargeBlocks: so is one of xz with blocks that are so large that nothing of it can stay.
func TestPackedRefusedLargeBlocks(t *testing.T) {
	for large, want := range map[int]error{farthest: syscall.EBADMSG, farthest + 1: syscall.ENOSPC} { // that it lies shows when it is read
		index := []byte{0, 2}
		for range 2 {
			index = binary.AppendUvarint(binary.AppendUvarint(index, 800), uint64(large))
		}
		index = append(index, make([]byte, -len(index)&3)...)
		index = binary.LittleEndian.AppendUint32(index, crc32.ChecksumIEEE(index))
		foot := append(binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1)), 0, 1)
		packed := stageintest.Codecs[2].Pack(t, tooLarge(t)) // for its first bytes
		packed = append(append(packed, make([]byte, 1600)...), index...)
		packed = append(append(binary.LittleEndian.AppendUint32(packed, crc32.ChecksumIEEE(foot)), foot...), "YZ"...)
		j := tarJob(packed, 4)
		j.free = hasRoom
		_, err := j.run(context.Background())
		if !errors.Is(err, want) {
			t.Errorf("blocks of %d bytes: %v, want %v", large, err, want)
		}
	}
}

// TestPackedRefusedByParts: so is one that tells it part by part, or has an index beside it.
func TestPackedRefusedByParts(t *testing.T) {
	plain := tooLarge(t)
	bgz, gzi := stageintest.Bgzip(t, plain)
	for name, x := range map[string]struct {
		packed, gzi []byte
		by          string
	}{
		"zstd frames":    {packed: stageintest.ZstdFrames(t, plain), by: "at the least, by the headers of its frames"},
		"bgzf, an index": {packed: bgz, gzi: gzi, by: "at the least, by /src/a.tar.gzi (remove that if it is not of this archive)"},
	} {
		t.Run(name, func(t *testing.T) {
			j := tarJob(x.packed, 4)
			if x.gzi != nil {
				j.fs.Add("/src/a.tar.gzi", source.TypeRegular|0o644, x.gzi)
			}
			j.free, j.opts.Spill = hasRoom, SpillFail
			if _, err := j.run(context.Background()); !stageintest.ErrorHas(err, "n0 needs room for 35", "1.5 MiB in all, "+x.by, "leave spill=fail out") {
				t.Errorf("%v, want a refusal", err)
			}
			if read := j.fs.Read.Load(); len(j.target.Objects) > 0 || read > 16<<10 {
				t.Errorf("%d objects were written, and %d bytes read, before it was refused", len(j.target.Objects), read)
			}
		})
	}
}

// TestPackedIndexIsNotTrusted: an index beside an archive of BGZF that is not of it is
// named in the log, and what fits is staged; and so it is if there is no index.
func TestPackedIndexIsNotTrusted(t *testing.T) {
	bgz, _ := stageintest.Bgzip(t, stageintest.HalfRandomTar(t, 30))
	_, other := stageintest.Bgzip(t, tooLarge(t))
	for name, gzi := range map[string][]byte{"none": nil, "another archive's": other, "nonsense": []byte("nonsense")} {
		t.Run(name, func(t *testing.T) {
			j := tarJob(bgz, 4)
			if gzi != nil {
				j.fs.Add("/src/a.tar.gzi", source.TypeRegular|0o644, gzi)
			}
			var log bytes.Buffer
			l := logrus.New()
			l.SetOutput(&log)
			j.free, j.log = func(metadata.NodeID) (int64, bool) { return roomEach + leastSpare, true }, logrus.NewEntry(l)
			tree, err := j.run(context.Background())
			if err != nil || len(tree) == 0 {
				t.Errorf("%d files, %v", len(tree), err)
			}
			if warned := strings.Contains(log.String(), "an index of blocks cannot be used"); warned != (gzi != nil) {
				t.Errorf("the log says %s", &log)
			}
			if read := j.fs.Read.Load(); j.sum.SourceBytes != read {
				t.Errorf("%d bytes were counted of %d that were read", j.sum.SourceBytes, read)
			}
		})
	}
}

// TestArchivesRefusedEarly: so are several that have no room together.
func TestArchivesRefusedEarly(t *testing.T) {
	c := stageintest.Codecs[2] // of which nothing can stay
	plain := tooLarge(t)
	j := tarJob(c.Pack(t, plain[:len(plain)/2/source.BlockSize*source.BlockSize]), 4)
	j.fs.Add("/src/b.tar", source.TypeRegular|0o644, c.Pack(t, plain))
	j.fs.Add("/src", source.TypeDir|0o755, nil)
	j.path, j.free = "/src/*.tar", hasRoom
	if _, err := j.run(context.Background()); !stageintest.ErrorHas(err, "n0 needs room for 5", "KiB and has 300.0 KiB", "unpack=no") || len(j.target.Objects) > 0 {
		t.Errorf("%v with %d objects, want a refusal", err, len(j.target.Objects))
	}
}

// TestPackedPartOfMore: of an archive for which there is no room, what there is room for
// can be staged.
func TestPackedPartOfMore(t *testing.T) {
	for _, c := range stageintest.Codecs[:3] {
		j := tarJob(c.Pack(t, tooLarge(t)), 4)
		j.free, j.opts.Include = func(metadata.NodeID) (int64, bool) { return 160<<10 + leastSpare, true }, []source.Name{"f1*"}
		tree, err := j.run(context.Background())
		if err != nil || len(tree) != 11 || j.spilled > 0 {
			t.Errorf("%s: %d files, %d in the source, %v", c.Name, len(tree), j.spilled, err)
		}
		read := j.fs.Read.Load()
		if got := j.sum.SourceBytes; got != read {
			t.Errorf("%s: %d bytes were counted of %d that were read", c.Name, got, read)
		}
	}
}

// TestPackedLooksCount: what is read to see whether there is room counts.
func TestPackedLooksCount(t *testing.T) {
	for _, c := range stageintest.Codecs[:3] {
		j := tarJob(c.Pack(t, tooLarge(t)), 4)
		j.free = func(metadata.NodeID) (int64, bool) { return 4 * roomEach, true }
		if _, err := j.run(context.Background()); err != nil {
			t.Fatal(err)
		}
		n := int64(len(j.fs.Nodes[j.path].Data))
		if read := j.fs.Read.Load(); j.sum.SourceBytes != read || read > n+16<<10 {
			t.Errorf("%s: %d bytes were counted of %d that were read of %d", c.Name, j.sum.SourceBytes, read, n)
		}
	}
}

// TestPackedNodeFull: when a node becomes full in the middle, the message says how far it
// came and what to do.
func TestPackedNodeFull(t *testing.T) {
	j := tarJob(stageintest.Codecs[0].Pack(t, tooLarge(t)), 4)
	j.target = &stageintest.MemTarget{OnPut: func(node metadata.NodeID, ino metadata.Ino, _ int) error {
		if node == 2 && ino.Seq() > 20 {
			return syscall.ENOSPC
		}
		return nil
	}}
	j.free = func(metadata.NodeID) (int64, bool) { return 4 * roomEach, true }
	_, err := j.run(context.Background())
	if !stageintest.ErrorHas(err, "n2 needs room for", "and had 1.2 MiB when the stage-in began", "unpack=no", "to n2: no space left", "compressed offset") {
		t.Errorf("%v", err)
	}
}

// TestPortionsOfHugeGzip: a gzip that may unpack to 4 GiB and more says nothing of how much that is. Then each part has as
// much of the room as it has of what is packed.
func TestPortionsOfHugeGzip(t *testing.T) {
	for name, x := range map[string]struct {
		packed [2]int64 // bytes
		says   [2]uint32
		want   float64 // for the first
	}{
		"huge":  {[2]int64{1 << 30, 1 << 29}, [2]uint32{5 << 20, 3 << 29}, 2. / 3},
		"small": {[2]int64{2 << 20, 1 << 20}, [2]uint32{4 << 20, 12 << 20}, 1. / 4},
	} {
		fs := stageintest.NewFS()
		for _, d := range []string{"/", "/src"} {
			fs.Add(d, source.TypeDir|0o755, nil)
		}
		for i, size := range x.packed {
			b := make([]byte, size) // of which hardly a page is touched
			copy(b, "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03")
			binary.LittleEndian.PutUint32(b[size-4:], x.says[i])
			fs.Add(fmt.Sprint("/src/", i, ".tar.gz"), source.TypeRegular|0o644, b)
		}
		p, err := MakePlan(context.Background(), &PlanConfig{
			FS: fs, Request: Request{Source: "/src/*", Name: "ds"}, Dataset: 3, Map: stageintest.ClusterMap(2),
			Free: func(metadata.NodeID) (int64, bool) { return 64 << 20, true },
		})
		stageintest.NoError(t, err)
		if !p.Spills || len(p.Parts) != 2 {
			t.Fatalf("%s: plan %+v", name, p)
		}
		if got := p.Parts[0].portion(p.Parts); math.Abs(got-x.want) > 0.01 {
			t.Errorf("%s: portion %v, want %v", name, got, x.want)
		}
	}
}
