package fill_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"slices"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestRefetchOfChangedSource: a damaged file is fetched again, but the source has other bytes, with the same size and
// time. They are ESTALE each time, and not served, whether the checksum is in the journal or the manifest. When the source
// has the old bytes again, the file is repaired.
func TestRefetchOfChangedSource(t *testing.T) {
	t.Run("directory", func(t *testing.T) {
		j, f, files := crammed(t, 5, 1<<30, true)
		r := &files[3]
		changedSource(t, j, f, r, j.Path+"/"+r.Path, bytes.Repeat([]byte{0xee}, int(r.Attr.Size)))
	})
	for _, c := range []struct {
		name, path string
		stripe     int64
	}{{"tar", "a.tar", 1 << 20}, {"tar.gz", "a.tar.gz", 1 << 20}, {"chunks of a tar.gz", "a.tar.gz", 1000}} {
		t.Run(c.name, func(t *testing.T) {
			name := c.path
			s := jobtest.NewRack(t, 3, "/src/"+name, stagein.Options{})
			s.Region, s.Stripe = 1024, c.stripe
			s.Archive(name, "m", 60, "")
			s.Check()
			files, err := stageintest.FilesOfParts(s.Records, s.Sums)
			stageintest.NoError(t, err)
			changed := changeContent(t, name, s.FS.Nodes[s.Path].Data)
			crcs, tried := 0, 0
			for node := range metadata.NodeID(3) {
				f, err := s.Filler(stageintest.ClusterMap(3), node, &scan.Scanned{Origins: s.Plan.Origins}, files, t.TempDir())
				stageintest.NoError(t, err)
				defer f.Close()
				for _, r := range files.Records {
					if !jobtest.HasData(&r) || firstNode(&r) != node || r.Attr.Size <= 1000 || name == "a.tar.gz" && tried == 2 {
						continue
					}
					tried++
					if stagein.IsCRC(r.Sum) {
						crcs++
					}
					f = changedSource(t, s.Job, f, &r, s.Path, changed)
				}
			}
			if name == "a.tar" && crcs == 0 {
				t.Error("no file was read by two nodes")
			}
		})
	}
}

// TestRefetchOfHole: a file of a sparse member is damaged in its holes, too. The refetch brings the zeros.
func TestRefetchOfHole(t *testing.T) {
	stageintest.SparseTar(t, stageintest.HoleyFiles(stageintest.Rand(t)), func(t *testing.T, archive []byte) {
		for name, j := range map[string]*jobtest.Job{
			"tar": jobtest.TarJob(archive, 1), "tar.gz": jobtest.PackedJob(stageintest.PackGzip(t, archive), 1<<30),
		} {
			j.Nodes = 1
			_, err := j.Run(t.Context())
			stageintest.NoError(t, err)
			files, err := stageintest.FilesOfParts(j.Records, j.Sums)
			stageintest.NoError(t, err)
			f, err := j.Filler(stageintest.ClusterMap(1), 0, &scan.Scanned{Origins: j.Plan.Origins}, files, t.TempDir())
			stageintest.NoError(t, err)
			defer f.Close()
			var inos []metadata.Ino
			was := make(map[stageintest.ObjectKey][]byte)
			for k, b := range j.Target.Objects {
				inos, was[k] = append(inos, k.Ino), bytes.Clone(b)
				for i := 7; i < len(b); i += 4096 {
					b[i] ^= 0xee
				}
			}
			if failed, err := f.Refetch(t.Context(), inos); err != nil || len(failed) > 0 {
				t.Errorf("%s: Refetch = %v, %v", name, failed, err)
			}
			for k, b := range j.Target.Objects {
				if !bytes.Equal(b, was[k]) {
					t.Errorf("%s: inode %v has other bytes than before", name, k.Ino)
				}
			}
		}
	})
}

// changeContent packs the members of an archive with other bytes of the same length.
func changeContent(t *testing.T, name string, packed []byte) []byte {
	t.Helper()
	change := func(plain []byte) []byte { return bytes.ReplaceAll(plain, []byte("x"), []byte("y")) }
	if name == "a.tar" {
		return change(packed)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	stageintest.NoError(t, err)
	plain, err := io.ReadAll(r)
	stageintest.NoError(t, err)
	return stageintest.PackGzip(t, change(plain))
}

// changedSource damages the object of a file, and has it fetched again while the source is changed and when it is as before,
// also by a daemon that is started in between, whose fill it returns. The object, which a kernel view may read, never has
// changed bytes.
func changedSource(t *testing.T, j *jobtest.Job, f *fill.Fill, r *manifest.Record, path string, changed []byte) *fill.Fill {
	t.Helper()
	n, inos := j.FS.Nodes[path], []metadata.Ino{r.Attr.Ino}
	object := stageintest.ObjectKey{Node: firstNode(r), Ino: r.Attr.Ino}
	old, was := n.Data, bytes.Clone(j.Target.Objects[object])
	if len(changed) != len(old) || bytes.Equal(changed, old) {
		t.Fatalf("%s: %d bytes were changed to %d", path, len(old), len(changed))
	}
	j.Target.Objects[object][r.Attr.Size/2] ^= 1
	damaged := bytes.Clone(j.Target.Objects[object])
	source := func(b []byte) { // an earlier reading may still be ending
		j.FS.Mu.Lock()
		defer j.FS.Mu.Unlock()
		n.Data = b
	}
	source(changed)
	refused := func() {
		t.Helper()
		if err := f.Need(t.Context(), r.Attr.Ino, 0, 1); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: Need = %v, want EIO", r.Path, err)
		}
		if !bytes.Equal(j.Target.Objects[object], damaged) {
			t.Errorf("%s: the object has other bytes than were staged", r.Path)
		}
	}
	for range 2 {
		if failed, err := f.Refetch(t.Context(), inos); err != nil || !errors.Is(failed[r.Attr.Ino], syscall.ESTALE) {
			t.Errorf("%s: Refetch = %v, %v, want ESTALE", r.Path, failed, err)
		}
		refused()
		if slices.Contains(f.Accept(fill.Offer{By: 1, Incarnation: 1, Pieces: []fill.PieceID{{Ino: r.Attr.Ino}}}), true) {
			t.Errorf("%s: another node may bring its bytes", r.Path)
		}
	}
	f = started(t, f)
	refused()
	source(old)
	if failed, err := f.Refetch(t.Context(), inos); err != nil || len(failed) > 0 {
		t.Errorf("%s: Refetch = %v, %v of the old bytes", r.Path, failed, err)
	}
	f = started(t, f)
	if err := f.Need(t.Context(), r.Attr.Ino, 0, 1); err != nil || !bytes.Equal(j.Target.Objects[object], was) {
		t.Errorf("%s: Need = %v, or other bytes than before", r.Path, err)
	}
	return f
}

// firstNode is the node, of three, that has the first piece of a file.
func firstNode(r *manifest.Record) metadata.NodeID {
	return stageintest.ClusterMap(3).Order(r.Attr.Ino, r.Attr.Layout)[0]
}

// started is the fill of a daemon that is started after that of f was killed.
func started(t *testing.T, f *fill.Fill) *fill.Fill {
	t.Helper()
	again, err := fill.New(*f.Config())
	stageintest.NoError(t, err)
	t.Cleanup(func() { stageintest.NoError(t, again.Close()) })
	return again
}
