package scan

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestSmallMembersOverflow: a tar of small members is read in a single pass if there is room for its pages; if not,
// some members stay in the source, or overflow=fail refuses the tar before a byte is copied.
func TestSmallMembersOverflow(t *testing.T) {
	const members, on = 3000, 4
	fs := stageintest.NewFS()
	data := stageintest.SmallTar(t, members)
	fs.Add("/src/set.tar", source.TypeRegular|0o644, data)
	stored := int64(members * stagein.PageSize)
	if size := int64(len(data)); 2*size > stored {
		t.Fatalf("%d bytes of tar are no less than %d on the disks", size, stored)
	}
	for name, c := range map[string]struct {
		free     int64 // of each node
		overflow stagein.Overflow
		scanned  bool
		refused  string
	}{
		"room for all":                 {free: stored/on + 4*leastSpare},
		"room for the bytes alone":     {free: stored * 6 / 10 / on, scanned: true},
		"not for the bytes":            {free: stored * 3 / 10 / on, scanned: true},
		"overflow=fail, room for all":  {free: stored/on + 4*leastSpare, overflow: stagein.OverflowFail},
		"overflow=fail, for the bytes": {free: stored * 6 / 10 / on, overflow: stagein.OverflowFail, refused: "leave overflow=fail out"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := &Config{
				FS: fs, Request: stagein.Request{Source: "/src/set.tar", Name: "set", Options: stagein.Options{Overflow: c.overflow}}, Dataset: 3,
				Map: stageintest.ClusterMap(on), Free: func(metadata.NodeID) (int64, bool) { return c.free, true }, Log: stageintest.QuietLog(), Scratch: &manifest.Scratch{},
			}
			var records bytes.Buffer
			s, err := Run(context.Background(), cfg, &records)
			stageintest.NoError(t, err)
			if got := s != nil; got != c.scanned || got && !s.Origins.HasOverflow {
				t.Fatalf("Scan gave %+v, want one with overflows: %v", s, c.scanned)
			}
			if c.scanned {
				checkOverflow(t, records.Bytes(), members, c.free)
				return
			}
			_, err = MakePlan(context.Background(), cfg)
			if c.refused == "" && err != nil || c.refused != "" && (!errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), c.refused)) {
				t.Errorf("MakePlan: %v, want an error with %q", err, c.refused)
			}
		})
	}
}

// checkOverflow checks that all members are present, some of them in the source, and no node exceeds free.
func checkOverflow(t *testing.T, records []byte, members int, free int64) {
	t.Helper()
	files, err := stageintest.FilesOf(records)
	stageintest.NoError(t, err)
	n, has := 0, make(map[metadata.NodeID]int64)
	for _, r := range files.Records {
		switch {
		case r.Attr.Mode&source.TypeMask != source.TypeRegular:
			continue
		case !fill.IsOverflow(&r.Attr):
			has[r.Attr.Layout.Node] += stagein.Pages(r.Attr.Size)
		}
		n++
	}
	if n != members || len(has) == 0 {
		t.Errorf("%d members, on %d nodes, want %d", n, len(has), members)
	}
	for id, b := range has {
		if b > free {
			t.Errorf("node %d has %d bytes, and room for %d", id, b, free)
		}
	}
}
