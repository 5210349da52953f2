package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

func TestCoverable(t *testing.T) {
	const memory = 8 << 30
	for _, tt := range []struct {
		what         string
		files, bytes int64
		want         bool
	}{
		{"small files", 1000, 1000 * 110 << 10, true},
		{"nothing", 0, 0, false},
		{"files without bytes", 10, 0, true},
		{"files of one request", 8, 8 * coverMean, true},
		{"larger files", 8, 8*coverMean + 8, false},
		{"half of the memory", 1 << 20, memory / 2, true},
		{"more than that", 1 << 20, memory/2 + 1, false},
	} {
		if got := coverable(cluster.Dataset{Files: tt.files, Bytes: tt.bytes}, memory); got != tt.want {
			t.Errorf("coverable of %s = %v, want %v", tt.what, got, tt.want)
		}
	}
	if machineMemory() < 64<<20 {
		t.Errorf("this machine has %d bytes of memory", machineMemory())
	}
}

// testCovers returns covers without a mount, and the names uncovered so far. No mount is assumed to be in progress.
func testCovers(dir string) (c *covers, uncovered *[]string) {
	log := logrus.New()
	log.SetLevel(logrus.PanicLevel)
	c = newCovers(&node{job: &job.File{Dirs: job.Dirs{Run: dir}}, log: logrus.NewEntry(log)}, byUs{})
	uncovered = new([]string)
	c.uncover = func(name string) { *uncovered = append(*uncovered, name) }
	c.reveal = func() {}
	c.active = func(string) (cluster.Dataset, bool) { return cluster.Dataset{}, false }
	return c, uncovered
}

// mounted records that a dataset has a mount.
func (c *covers) mounted(ds cluster.Dataset) {
	c.seen[ds.ID] = &covered{ds: ds}
	c.done(c.seen[ds.ID], new(mount.Cover), false)
}

// TestSuccessorKeepsItsMount: the end of a dataset removes its mounts, but not those of a successor with its name,
// however late this node processes the end: when the dataset's mount is finally made, or after a daemon restart.
func TestSuccessorKeepsItsMount(t *testing.T) {
	was, next := cluster.Dataset{ID: 1, Name: "ds", Phase: cluster.Sealed}, cluster.Dataset{ID: 2, Name: "ds", Phase: cluster.Sealed}
	gone, other := was, next
	gone.Phase, other.Name = cluster.Removed, "other"
	var uncovered *[]string
	for _, c := range []struct {
		what string
		do   func(c *covers)
		want int // number of names uncovered
	}{
		{"it has a mount", func(c *covers) { c.mounted(was); c.mounted(other); c.forget(gone) }, 1},
		{"its successor has a mount, too", func(c *covers) { c.mounted(was); c.mounted(next); c.forget(gone) }, 0},
		{"its successor is published, and not mounted yet", func(c *covers) {
			c.mounted(was)
			c.active = func(string) (cluster.Dataset, bool) { return next, true }
			c.forget(gone)
		}, 1},
		{"the daemon was restarted, and had mounted over the successor", func(c *covers) {
			c.prepare(next)
			*uncovered = nil
			c.active = func(string) (cluster.Dataset, bool) { return next, true }
			c.forget(gone)
		}, 0},
		{"the daemon was restarted, and had not mounted over the successor", func(c *covers) {
			c.prepare(was)
			*uncovered = nil
			c.active = func(string) (cluster.Dataset, bool) { return next, true }
			c.forget(gone)
		}, 1},
		{"the daemon was restarted, and the successor is mounted over before its predecessor has ended here", func(c *covers) {
			c.prepare(was)
			*uncovered = nil
			c.prepare(next)
			c.mounted(next)
			c.forget(gone)
			c.prepare(next) // again
		}, 1},
		{"the daemon was restarted, and no successor is published", func(c *covers) {
			c.active = func(string) (cluster.Dataset, bool) { return cluster.Dataset{ID: 2, Phase: cluster.Staging}, true }
			c.forget(gone)
		}, 1},
		{"its view is made again", func(c *covers) {
			x := &covered{ds: was, view: true}
			c.seen[was.ID] = x
			c.forget(gone)
			c.mounted(next)
			c.remake(x)
		}, 1},
	} {
		var x *covers
		x, uncovered = testCovers(t.TempDir())
		c.do(x)
		if len(*uncovered) != c.want || slices.ContainsFunc(*uncovered, func(n string) bool { return n != "ds" }) {
			t.Errorf("%s: %q are uncovered, want %d names", c.what, *uncovered, c.want)
		}
	}
	for _, c := range []struct {
		what       string
		m          *mount.Cover
		next, want bool
	}{{"mounted", new(mount.Cover), false, true}, {"not mounted", nil, false, false}, {"mounted, with a successor", new(mount.Cover), true, false}} {
		x, _ := testCovers(t.TempDir())
		late := &covered{ds: gone}
		if c.next {
			x.mounted(next)
		}
		if detach, _ := x.done(late, c.m, false); detach != c.want {
			t.Errorf("%s after the end: detach is %v", c.what, detach)
		}
	}
}

// TestShownStaysShown: a restarted daemon does not hide a dataset that programs on this node have seen.
func TestShownStaysShown(t *testing.T) {
	dir := t.TempDir()
	ds, other := cluster.Dataset{ID: 7, Files: 1, Phase: cluster.Publishing}, cluster.Dataset{ID: 8, Files: 1, Phase: cluster.Publishing}
	c, _ := testCovers(dir)
	if !c.hidden(ds) || !c.hidden(other) {
		t.Fatal("a dataset is shown before its mount is made")
	}
	c.show(ds.ID)
	if c.hidden(ds) {
		t.Error("a dataset is hidden that was shown")
	}
	c, _ = testCovers(dir)
	if c.hidden(ds) || !c.hidden(other) {
		t.Errorf("after a restart: hidden: %v, the other %v, want false, true", c.hidden(ds), c.hidden(other))
	}
}

// TestLinkFiles: a file that cannot be linked is counted, and later files are still linked.
func TestLinkFiles(t *testing.T) {
	entries := func(fn func(uint32, string, metadata.Attr) bool) error {
		for i := range 10 {
			a := metadata.Attr{Ino: metadata.SealedIno(1, 0, uint32(i)), Mode: syscall.S_IFREG}
			if i == 9 {
				a.Mode = syscall.S_IFDIR
			}
			if !fn(0, fmt.Sprint("f", i), a) {
				break
			}
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	files, failed, err := linkFiles(ctx, entries, func(_ context.Context, a *metadata.Attr) (bool, error) {
		if i := a.Ino.Seq(); i == 1 || i == 4 {
			return true, syscall.EMLINK
		}
		return a.Ino.Seq() != 5, nil
	})
	if want := `"f1": ` + syscall.EMLINK.Error(); files != 6 || failed != 2 || err == nil || err.Error() != want {
		t.Errorf("linkFiles = %d, %d, %v, want 6, 2, %s", files, failed, err, want)
	}
	n := 0
	_, _, _ = linkFiles(ctx, entries, func(context.Context, *metadata.Attr) (bool, error) { n++; cancel(); return true, nil })
	if n != 1 {
		t.Errorf("%d files are linked after the end", n)
	}
}
