package fill_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestRefetchOfChangedSource: a damaged file is fetched again, but the source now has other bytes, with the same size
// and time. Each read fails with ESTALE and no such byte is served, whether the checksum is in the journal or in the
// manifest. When the source has the old bytes again, the file is repaired.
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

// TestStandInCompares: the files of a lost node are fetched by other nodes, which serve only the bytes that were
// staged, whichever node reads the source. When the source has the old bytes again, the nodes serve them.
func TestStandInCompares(t *testing.T) {
	for _, c := range []struct {
		path   string
		stripe int64
	}{{"a.tar", 1 << 20}, {"a.tar", 1000}, {"a.tar.gz", 1 << 20}, {"a.tar.gz", 1000}} {
		t.Run(fmt.Sprint(c.path, " ", c.stripe), func(t *testing.T) {
			s := jobtest.NewRack(t, 3, "/src/"+c.path, stagein.Options{})
			s.Region, s.Stripe = 1024, c.stripe
			s.Archive(c.path, "m", 60, "")
			s.Check()
			files, err := stageintest.FilesOfParts(s.Records, s.Sums)
			stageintest.NoError(t, err)
			n, dir := s.FS.Nodes[s.Path], t.TempDir()
			old := n.Data
			n.Data = changeContent(t, c.path, old)
			m := stageintest.ClusterMap(3).WithState(1, cluster.Down, "")
			s.Swarm = jobtest.NewSwarm(s.Job)
			fills, lost := make(map[metadata.NodeID]*fill.Fill), make(map[metadata.NodeID][]fill.PieceID)
			for _, id := range m.Up() {
				fills[id], err = s.Filler(m, id, &scan.Scanned{Origins: s.Plan.Origins}, files, dir)
				stageintest.NoError(t, err)
				lost[id], err = fills[id].List(m)
				stageintest.NoError(t, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var wg, tried sync.WaitGroup
			for _, f := range fills {
				tried.Add(1)
				wg.Go(func() { f.Run(ctx, sync.OnceFunc(tried.Done)) })
			}
			read := func() (served, refused int) {
				t.Helper()
				for id, ps := range lost {
					for _, p := range ps {
						switch err := fills[id].Await(ctx, p); {
						case err == nil:
							served++
						case errors.Is(err, syscall.EIO):
							refused++
						default:
							t.Errorf("piece %v = %v", p, err)
						}
					}
				}
				return served, refused
			}
			if served, refused := read(); refused <= served {
				t.Errorf("the source has other bytes: %d pieces were served, %d refused", served, refused)
			}
			tried.Wait() // a fetch that began earlier may have read the other bytes
			s.FS.Mu.Lock()
			n.Data = old
			s.FS.Mu.Unlock()
			if served, refused := read(); refused > 0 || served == 0 {
				t.Errorf("the source has the old bytes: %d pieces were served, %d refused", served, refused)
			}
			cancel()
			wg.Wait()
			for _, f := range fills {
				stageintest.NoError(t, f.Close())
			}
			s.Holds(m, files)
		})
	}
}

// TestOneChecksumIsLost: a damaged file whose checksum cannot be read when the daemon starts is not served; other files
// are.
func TestOneChecksumIsLost(t *testing.T) {
	j, f, files := crammed(t, 5, 1<<30, true)
	stageintest.NoError(t, f.Need(t.Context(), files[1].Attr.Ino, 0, 1))
	bad, path := &files[3], j.Path+"/"+files[3].Path
	data := j.FS.Nodes[path].Data
	source := func(b []byte) {
		j.FS.Mu.Lock()
		defer j.FS.Mu.Unlock()
		j.FS.Nodes[path].Data = b
	}
	source(bytes.Repeat([]byte{0xee}, len(data)))
	if failed, err := f.Refetch(t.Context(), []metadata.Ino{bad.Attr.Ino}); err != nil || len(failed) != 1 {
		t.Fatalf("Refetch = %v, %v", failed, err)
	}
	lost := lostOrigin{f.Config().Files, bad.Attr.Ino, new(atomic.Bool)}
	f.Config().Files = lost
	f = started(t, f)
	lost.found.Store(true)
	source(data)
	if err := f.Need(t.Context(), bad.Attr.Ino, 0, 1); !errors.Is(err, syscall.EIO) {
		t.Errorf("Need of the file without a checksum = %v, want EIO", err)
	}
	stageintest.NoError(t, f.Need(t.Context(), files[1].Attr.Ino, 0, 1))
	f = started(t, f)
	stageintest.NoError(t, f.Need(t.Context(), bad.Attr.Ino, 0, 1))
}

type allFiles interface{ stagein.Files }

// lostOrigin is a set of files, one of which is not found at first.
type lostOrigin struct {
	allFiles
	ino   metadata.Ino
	found *atomic.Bool
}

func (l lostOrigin) Origin(ino metadata.Ino) (manifest.Origin, metadata.Attr, error) {
	if ino == l.ino && !l.found.Load() {
		return manifest.Origin{}, metadata.Attr{}, syscall.EIO
	}
	return l.allFiles.Origin(ino)
}

// TestSoiledHole: a replica with wrong bytes was partly stored over a sparse member's holes. The zeros are stored.
func TestSoiledHole(t *testing.T) {
	stageintest.SparseTar(t, stageintest.HoleyFiles(stageintest.Rand(t)), func(t *testing.T, archive []byte) {
		j := jobtest.TarJob(archive, 1)
		_, err := j.Run(t.Context())
		stageintest.NoError(t, err)
		files, err := stageintest.FilesOfParts(j.Records, j.Sums)
		stageintest.NoError(t, err)
		m := stageintest.ClusterMap(1).WithState(0, cluster.Down, "").WithState(0, cluster.Up, "n0:1")
		f, err := j.Filler(m, 0, &scan.Scanned{Origins: j.Plan.Origins}, files, t.TempDir())
		stageintest.NoError(t, err)
		defer f.Close()
		was := j.Target.Objects
		j.Target.Objects = make(map[stageintest.ObjectKey][]byte)
		f.Config().Copy = func(ctx context.Context, p fill.PieceID, _ [16]byte) (sum [16]byte, ok, soiled bool) {
			for off := int64(7); off < files.ByIno[p.Ino].Attr.Size; off += 4096 {
				stageintest.NoError(t, j.Target.Put(ctx, 0, p.Ino, []byte{0xee}, off))
			}
			return sum, false, true
		}
		for k, want := range was {
			stageintest.NoError(t, f.Need(t.Context(), k.Ino, 0, int64(len(want))))
			if !bytes.Equal(j.Target.Objects[k], want) {
				got := j.Target.Objects[k]
				d := 0
				for d < len(got) && d < len(want) && got[d] == want[d] {
					d++
				}
				t.Errorf("inode %v has other bytes than were staged %d %d at %d sparse %v", k.Ino, len(got), len(want), d, files.ByIno[k.Ino])
			}
		}
	})
}

// TestSoiledMember: a replica with wrong bytes is stored over a member of a compressed tar that was just unpacked. The
// member is unpacked again.
func TestSoiledMember(t *testing.T) {
	tree := stageintest.HoleyFiles(stageintest.Rand(t))
	stageintest.SparseTar(t, tree, func(t *testing.T, archive []byte) {
		j := jobtest.PackedJob(stageintest.PackGzip(t, archive), 1<<30)
		j.Nodes = 1
		_, err := j.Run(t.Context())
		stageintest.NoError(t, err)
		files, err := stageintest.FilesOfParts(j.Records, j.Sums)
		stageintest.NoError(t, err)
		m := stageintest.ClusterMap(1).WithState(0, cluster.Down, "").WithState(0, cluster.Up, "n0:1")
		f, err := j.Filler(m, 0, &scan.Scanned{Origins: j.Plan.Origins}, files, t.TempDir())
		stageintest.NoError(t, err)
		was := j.Target.Objects
		j.Target.Objects = make(map[stageintest.ObjectKey][]byte)
		var one stageintest.ObjectKey
		for one = range was {
			break
		}
		f.Config().Copy = func(ctx context.Context, p fill.PieceID, _ [16]byte) (sum [16]byte, ok, soiled bool) {
			if p.Ino != one.Ino {
				return sum, false, false
			}
			f.MarkPresent(p, int64(len(was[one])))
			stageintest.NoError(t, j.Target.Put(ctx, 0, p.Ino, bytes.Repeat([]byte{0xee}, len(was[one])), 0))
			return sum, false, true
		}
		stageintest.NoError(t, f.Need(t.Context(), one.Ino, 0, int64(len(was[one]))))
		for len(f.Flights()) > 0 { // the reader may have returned earlier
			time.Sleep(time.Millisecond)
		}
		stageintest.NoError(t, f.Close())
		if !bytes.Equal(j.Target.Objects[one], was[one]) {
			t.Errorf("inode %v has other bytes than were staged", one.Ino)
		}
	})
}

// TestRefetchOfHole: a file of a sparse member is damaged in its holes, too. The refetch restores the zeros.
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

// changeContent repacks the members of an archive with other bytes of the same length.
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

// changedSource damages the object of a file and refetches it with the source changed and with the source as before,
// also with a daemon started in between; it returns that daemon's fill. The object, which a kernel view may read, never
// contains changed bytes.
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
	source := func(b []byte) { // an earlier read may still be in progress
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

// firstNode returns which of three nodes has the first piece of a file.
func firstNode(r *manifest.Record) metadata.NodeID {
	return stageintest.ClusterMap(3).Order(r.Attr.Ino, r.Attr.Layout)[0]
}

// started returns the fill of a daemon that starts after the daemon of f was killed.
func started(t *testing.T, f *fill.Fill) *fill.Fill {
	t.Helper()
	again, err := fill.New(*f.Config())
	stageintest.NoError(t, err)
	t.Cleanup(func() { stageintest.NoError(t, again.Close()) })
	return again
}
