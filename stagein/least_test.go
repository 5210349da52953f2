package stagein

import (
	"archive/tar"
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

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// tooLarge is a tar of half random bytes, more than 4 nodes have room for that have roomEach.
func tooLarge(t *testing.T) []byte {
	t.Helper()
	return halfRandom(t, 60)
}

// halfRandom is a tar of n members of 25,000 bytes, half of which are random.
func halfRandom(t *testing.T, n int) []byte {
	t.Helper()
	r := seed(t)
	var members []member
	for i := range n {
		members = append(members, file(fmt.Sprint("f", i), append(randBytes(r, 12_500), make([]byte, 12_500)...)))
	}
	return writeTar(t, tar.FormatGNU, members)
}

const roomEach = 300 << 10

func hasRoom(metadata.NodeID) (int64, bool) { return roomEach, true }

// TestPackedRefusedEarly: a compressed tar for which there is no room is refused before
// a byte is copied, if it says how large it is, and after a few small reads.
func TestPackedRefusedEarly(t *testing.T) {
	plain := tooLarge(t)
	for _, c := range codecs {
		switch c.name {
		case "gzip", "xz", "program gzip", "program pigz", "program xz", "program xz blocks":
		default:
			continue // says nothing of its size when it is written to a pipe
		}
		t.Run(c.name, func(t *testing.T) {
			j := tarJob(c.pack(t, plain), 4)
			for spill, advice := range map[Spill]string{SpillPFS: "unpack=no", SpillFail: "leave spill=fail out"} {
				if spill == SpillPFS && (!strings.Contains(c.name, "xz") || strings.HasSuffix(c.name, "blocks")) {
					continue // it may stay
				}
				j.free, j.opts.Spill = hasRoom, spill
				_, err := j.run(context.Background())
				if !errorHas(err, "/src/a.tar", "n0 needs room for 35", "KiB and has 300.0 KiB", "1.5 MiB in all", "no space left", advice) {
					t.Errorf("spill=%s: %v, want a refusal", spill, err)
				}
			}
			if read := j.fs.read.Load(); len(j.target.objects) > 0 || read > 32<<10 {
				t.Errorf("%d objects were written, and %d bytes read, before it was refused twice", len(j.target.objects), read)
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
		packed := codecs[2].pack(t, tooLarge(t)) // for its first bytes
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

// frames packs b as frames of zstd that say how large they are, without a table of them.
func frames(t testing.TB, b []byte) (packed []byte) {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	checked(t, err)
	for ; len(b) > 0; b = b[min(len(b), 100_000):] {
		packed = z.EncodeAll(b[:min(len(b), 100_000)], packed)
	}
	return packed
}

// bgzip packs b in blocks of BGZF, and makes their index, as the program does.
func bgzip(t testing.TB, b []byte) (packed, gzi []byte) {
	t.Helper()
	const block = 0xff00
	var out bytes.Buffer
	gzi = make([]byte, 8)
	for at := 0; at <= len(b); at += block {
		if at > 0 {
			gzi = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(gzi, uint64(out.Len())), uint64(at))
		}
		from := out.Len()
		w := gzip.NewWriter(&out)
		w.Extra = []byte("BC\x02\x00\x00\x00")
		_, err := w.Write(b[at:min(at+block, len(b))])
		checked(t, err, w.Close())
		binary.LittleEndian.PutUint16(out.Bytes()[from+16:], uint16(out.Len()-from-1))
	}
	w := gzip.NewWriter(&out)
	checked(t, w.Close())
	binary.LittleEndian.PutUint64(gzi, uint64(len(gzi)/16))
	return out.Bytes(), gzi
}

func checked(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestPackedRefusedByParts: so is one that tells it part by part, or has an index beside it.
func TestPackedRefusedByParts(t *testing.T) {
	plain := tooLarge(t)
	bgz, gzi := bgzip(t, plain)
	for name, x := range map[string]struct {
		packed, gzi []byte
		by          string
	}{
		"zstd frames":    {packed: frames(t, plain), by: "at the least, by the headers of its frames"},
		"bgzf, an index": {packed: bgz, gzi: gzi, by: "at the least, by /src/a.tar.gzi (remove that if it is not of this archive)"},
	} {
		t.Run(name, func(t *testing.T) {
			j := tarJob(x.packed, 4)
			if x.gzi != nil {
				j.fs.add("/src/a.tar.gzi", source.TypeRegular|0o644, x.gzi)
			}
			j.free, j.opts.Spill = hasRoom, SpillFail
			if _, err := j.run(context.Background()); !errorHas(err, "n0 needs room for 35", "1.5 MiB in all, "+x.by, "leave spill=fail out") {
				t.Errorf("%v, want a refusal", err)
			}
			if read := j.fs.read.Load(); len(j.target.objects) > 0 || read > 16<<10 {
				t.Errorf("%d objects were written, and %d bytes read, before it was refused", len(j.target.objects), read)
			}
		})
	}
}

// TestPackedIndexIsNotTrusted: an index beside an archive of BGZF that is not of it is
// named in the log, and what fits is staged; and so it is if there is no index.
func TestPackedIndexIsNotTrusted(t *testing.T) {
	bgz, _ := bgzip(t, halfRandom(t, 30))
	_, other := bgzip(t, tooLarge(t))
	for name, gzi := range map[string][]byte{"none": nil, "another archive's": other, "nonsense": []byte("nonsense")} {
		t.Run(name, func(t *testing.T) {
			j := tarJob(bgz, 4)
			if gzi != nil {
				j.fs.add("/src/a.tar.gzi", source.TypeRegular|0o644, gzi)
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
			if read := j.fs.read.Load(); j.sum.SourceBytes != read {
				t.Errorf("%d bytes were counted of %d that were read", j.sum.SourceBytes, read)
			}
		})
	}
}

// TestArchivesRefusedEarly: so are several that have no room together.
func TestArchivesRefusedEarly(t *testing.T) {
	c := codecs[2] // of which nothing can stay
	plain := tooLarge(t)
	j := tarJob(c.pack(t, plain[:len(plain)/2/source.BlockSize*source.BlockSize]), 4)
	j.fs.add("/src/b.tar", source.TypeRegular|0o644, c.pack(t, plain))
	j.fs.add("/src", source.TypeDir|0o755, nil)
	j.path, j.free = "/src/*.tar", hasRoom
	if _, err := j.run(context.Background()); !errorHas(err, "n0 needs room for 5", "KiB and has 300.0 KiB", "unpack=no") || len(j.target.objects) > 0 {
		t.Errorf("%v with %d objects, want a refusal", err, len(j.target.objects))
	}
}

// TestPackedPartOfMore: of an archive for which there is no room, what there is room for
// can be staged.
func TestPackedPartOfMore(t *testing.T) {
	for _, c := range codecs[:3] {
		j := tarJob(c.pack(t, tooLarge(t)), 4)
		j.free, j.opts.Include = func(metadata.NodeID) (int64, bool) { return 160<<10 + leastSpare, true }, []source.Name{"f1*"}
		tree, err := j.run(context.Background())
		if err != nil || len(tree) != 11 || j.spilled > 0 {
			t.Errorf("%s: %d files, %d in the source, %v", c.name, len(tree), j.spilled, err)
		}
		read := j.fs.read.Load()
		if got := j.sum.SourceBytes; got != read {
			t.Errorf("%s: %d bytes were counted of %d that were read", c.name, got, read)
		}
	}
}

// TestPackedLooksCount: what is read to see whether there is room counts.
func TestPackedLooksCount(t *testing.T) {
	for _, c := range codecs[:3] {
		j := tarJob(c.pack(t, tooLarge(t)), 4)
		j.free = func(metadata.NodeID) (int64, bool) { return 4 * roomEach, true }
		if _, err := j.run(context.Background()); err != nil {
			t.Fatal(err)
		}
		n := int64(len(j.fs.nodes[j.path].data))
		if read := j.fs.read.Load(); j.sum.SourceBytes != read || read > n+16<<10 {
			t.Errorf("%s: %d bytes were counted of %d that were read of %d", c.name, j.sum.SourceBytes, read, n)
		}
	}
}

// TestPackedNodeFull: when a node becomes full in the middle, the message says how far it
// came and what to do.
func TestPackedNodeFull(t *testing.T) {
	j := tarJob(codecs[0].pack(t, tooLarge(t)), 4)
	j.target = &memTarget{put: func(node metadata.NodeID, ino metadata.Ino, _ int) error {
		if node == 2 && ino.Seq() > 20 {
			return syscall.ENOSPC
		}
		return nil
	}}
	j.free = func(metadata.NodeID) (int64, bool) { return 4 * roomEach, true }
	_, err := j.run(context.Background())
	if !errorHas(err, "n2 needs room for", "and had 1.2 MiB when the stage-in began", "unpack=no", "to n2: no space left", "compressed offset") {
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
		fs := newFS()
		for _, d := range []string{"/", "/src"} {
			fs.add(d, source.TypeDir|0o755, nil)
		}
		for i, size := range x.packed {
			b := make([]byte, size) // of which hardly a page is touched
			copy(b, "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03")
			binary.LittleEndian.PutUint32(b[size-4:], x.says[i])
			fs.add(fmt.Sprint("/src/", i, ".tar.gz"), source.TypeRegular|0o644, b)
		}
		p, err := MakePlan(context.Background(), &PlanConfig{
			FS: fs, Request: Request{Source: "/src/*", Name: "ds"}, Dataset: 3, Map: testMap(2),
			Free: func(metadata.NodeID) (int64, bool) { return 64 << 20, true },
		})
		checked(t, err)
		if !p.Spills || len(p.Parts) != 2 {
			t.Fatalf("%s: plan %+v", name, p)
		}
		if got := p.Parts[0].portion(p.Parts); math.Abs(got-x.want) > 0.01 {
			t.Errorf("%s: portion %v, want %v", name, got, x.want)
		}
	}
}
