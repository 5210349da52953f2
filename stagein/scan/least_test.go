package scan_test

import (
	"context"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestPackedRefusedEarly: a compressed tar that states its size is refused for lack of room before a byte is copied and
// after a few small reads.
func TestPackedRefusedEarly(t *testing.T) {
	plain := jobtest.TooLarge(t)
	for _, c := range stageintest.Codecs {
		switch c.Name {
		case "gzip", "program gzip", "program pigz":
		default:
			continue // states no size when written to a pipe
		}
		t.Run(c.Name, func(t *testing.T) {
			j := jobtest.TarJob(c.Pack(t, plain), 4)
			for overflow, advice := range map[stagein.Overflow]string{stagein.OverflowSource: "unpack=no", stagein.OverflowFail: "a plain tar"} {
				j.Free, j.Opts.Overflow = jobtest.HasRoom, overflow
				_, err := j.Run(context.Background())
				if !stageintest.ErrorHas(err, "/src/a.tar", "n0 needs room for 35", "KiB and has 300.0 KiB", "1.5 MiB in all", "no space left", advice) {
					t.Errorf("overflow=%s: %v, want a refusal", overflow, err)
				}
			}
			if read := j.FS.Read.Load(); len(j.Target.Objects) > 0 || read > 32<<10 {
				t.Errorf("%d objects were written, and %d bytes read, before it was refused twice", len(j.Target.Objects), read)
			}
		})
	}
}

// TestArchivesRefusedEarly: the same for several archives that do not fit together.
func TestArchivesRefusedEarly(t *testing.T) {
	c := stageintest.Codecs[0]
	plain := jobtest.TooLarge(t)
	j := jobtest.TarJob(c.Pack(t, plain[:len(plain)/2/source.BlockSize*source.BlockSize]), 4)
	j.FS.Add("/src/b.tar", source.TypeRegular|0o644, c.Pack(t, plain))
	j.FS.Add("/src", source.TypeDir|0o755, nil)
	j.Path, j.Free = "/src/*.tar", jobtest.HasRoom
	if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, "n0 needs room for 5", "KiB and has 300.0 KiB", "unpack=no") || len(j.Target.Objects) > 0 {
		t.Errorf("%v with %d objects, want a refusal", err, len(j.Target.Objects))
	}
}

// TestPackedPartOfMore: a selection that fits can be staged from an archive that does not fit.
func TestPackedPartOfMore(t *testing.T) {
	for _, c := range stageintest.Codecs[:3] {
		j := jobtest.TarJob(c.Pack(t, jobtest.TooLarge(t)), 4)
		j.Free, j.Opts.Include = func(metadata.NodeID) (int64, bool) { return 160<<10 + scan.LeastSpare, true }, []source.Name{"f1*"}
		tree, err := j.Run(context.Background())
		if err != nil || len(tree) != 11 {
			t.Errorf("%s: %d files, %v", c.Name, len(tree), err)
		}
		read := j.FS.Read.Load()
		if got := j.Sum.SourceBytes; got != read {
			t.Errorf("%s: %d bytes were counted of %d that were read", c.Name, got, read)
		}
	}
}

// TestPackedLooksCount: bytes read to determine whether there is room are counted.
func TestPackedLooksCount(t *testing.T) {
	for _, c := range stageintest.Codecs[:3] {
		j := jobtest.TarJob(c.Pack(t, jobtest.TooLarge(t)), 4)
		j.Free = func(metadata.NodeID) (int64, bool) { return 4 * jobtest.RoomEach, true }
		if _, err := j.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		n := int64(len(j.FS.Nodes[j.Path].Data))
		if read := j.FS.Read.Load(); j.Sum.SourceBytes != read || read > n+16<<10 {
			t.Errorf("%s: %d bytes were counted of %d that were read of %d", c.Name, j.Sum.SourceBytes, read, n)
		}
	}
}

// TestPackedNodeFull: when a node becomes full during the stage-in, the message says how far it got and what to do.
func TestPackedNodeFull(t *testing.T) {
	j := jobtest.TarJob(stageintest.Codecs[0].Pack(t, jobtest.TooLarge(t)), 4)
	j.Target = &stageintest.MemTarget{OnPut: func(node metadata.NodeID, ino metadata.Ino, _ int) error {
		if node == 2 && ino.Seq() > 20 {
			return syscall.ENOSPC
		}
		return nil
	}}
	j.Free = func(metadata.NodeID) (int64, bool) { return 4 * jobtest.RoomEach, true }
	_, err := j.Run(context.Background())
	if !stageintest.ErrorHas(err, "n2 is full", "had room for 1.2 MiB when the stage-in began", "unpack=no", "to n2: no space left", "compressed offset") {
		t.Errorf("%v", err)
	}
}
