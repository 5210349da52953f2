package stagein

import (
	"archive/tar"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// fillStaged runs the fills of what the job has staged, on the nodes that are up in m.
func (s *rack) fillStaged(m cluster.Map, files Files, dir string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	s.swarm = newSwarm(s.job)
	errs := make(chan error, s.nodes)
	up := m.Up()
	for _, id := range up {
		go func() {
			f, err := s.filler(m, id, &Scanned{Origins: s.plan.Origins}, files, dir)
			if err == nil {
				err = s.runFill(ctx, f)
				if e := f.Close(); err == nil {
					err = e
				}
			}
			errs <- err
		}()
	}
	for range up {
		if err := <-errs; err != nil {
			s.t.Error(err)
		}
	}
}

// holds makes sure that the nodes have every file as m gives it to them.
func (s *rack) holds(m cluster.Map, files *stageintest.MemFiles) {
	s.t.Helper()
	for _, r := range files.Records {
		if r.Attr.Mode&source.TypeMask != source.TypeRegular || r.Hardlink != "" {
			continue
		}
		want, got := s.want[r.Path], make([]byte, r.Attr.Size)
		sp := placementOf(m, r.Attr)
		for chunk := range sp.pieces() {
			node := m.Holder(r.Attr.Ino, sp.owner(chunk))
			pos, n, off := sp.at(chunk, node)
			if b := s.target.Objects[stageintest.ObjectKey{Node: node, Ino: r.Attr.Ino}]; int64(len(b)) >= off+n {
				copy(got[pos:pos+n], b[off:])
			}
		}
		if string(got) != want {
			s.t.Errorf("%q is not what it was", r.Path)
		}
	}
}

// TestStagedIsFetchedAgain: what was staged while it was read is there when it is
// published, and is not read again; what a lost node had of it is, by the others,
// whatever the source is.
func TestStagedIsFetchedAgain(t *testing.T) {
	for _, c := range []struct {
		name    string
		sources []string
		o       Options
		stripe  int64
	}{
		{"a tar", []string{"a.tar"}, Options{}, 1 << 20},
		{"a tar with striped members", []string{"a.tar"}, Options{}, 1000},
		{"a compressed tar", []string{"a.tar.gz"}, Options{}, 1 << 20},
		{"a compressed tar with striped members", []string{"a.tar.gz"}, Options{}, 1000},
		{"a zip archive", []string{"a.zip"}, Options{}, 1 << 20},
		{"a zip archive with striped members", []string{"a.zip"}, Options{}, 1000},
		{"several", []string{"a.tar", "b.tar.gz", "c.zip"}, Options{Unpack: UnpackApart}, 1 << 20},
		{"what could be read", []string{"a.tar", "b.tar.gz"}, Options{OnError: OnErrorSkip}, 1 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newRack(t, 4, "/src/*", c.o)
			s.stripe = c.stripe
			for i, name := range c.sources {
				under := ""
				if c.o.Unpack == UnpackApart {
					under = name[:1]
				}
				s.archive(name, fmt.Sprintf("m%d-", i), 60, under)
			}
			s.check()
			if s.plan == nil {
				t.Fatal("was scanned")
			}
			files, err := stageintest.FilesOfParts(s.records, s.sums)
			if err != nil {
				t.Fatal(err)
			}
			m, dir, read := stageintest.ClusterMap(4), t.TempDir(), s.fs.Read.Load()
			for range 2 { // the daemons begin, and begin again
				s.fillStaged(m, files, dir)
			}
			if again := s.fs.Read.Load() - read; again != 0 {
				t.Errorf("%d bytes were read again", again)
			}
			s.holds(m, files)
			for k := range s.target.Objects {
				if k.Node == 2 {
					delete(s.target.Objects, k)
				}
			}
			m = m.WithState(2, cluster.Down, "")
			s.fillStaged(m, files, dir)
			s.holds(m, files)
			if again := s.fs.Read.Load() - read; again == 0 {
				t.Error("nothing was read again")
			}
			read = s.fs.Read.Load()
			s.fillStaged(m, files, dir)
			if again := s.fs.Read.Load() - read; again != 0 {
				t.Errorf("%d bytes were read a third time", again)
			}
		})
	}
}

// TestRefetchFromRestartPoints: what a lost node had of a compressed tar is unpacked from the restart points before it on,
// in several legs.
func TestRefetchFromRestartPoints(t *testing.T) {
	r := stageintest.Rand(t)
	m := stageintest.ClusterMap(2)
	for _, c := range stageintest.SeekableCodecs[:4] {
		t.Run(c.Name, func(t *testing.T) {
			var members [2][]stageintest.Member
			for i := 0; len(members[0]) < 200 || len(members[1]) < 30; i++ {
				name := fmt.Sprint("f", i)
				k := m.FileOwner(name)
				members[k] = append(members[k], stageintest.TarFile(name, stageintest.RandBytes(r, 4000+r.IntN(9000))))
			}
			const before = 150 // what the lost node had comes late, and at the end
			all := slices.Concat(members[0][:before], members[1][:15], members[0][before:], members[1][15:30])
			j := seekableJob(c.Pack(t, stageintest.WriteTar(t, tar.FormatGNU, all)), 1<<30)
			j.nodes, j.memory, j.rangeSize = 2, 4<<20, 100_000
			want, err := j.run(context.Background())
			stageintest.NoError(t, err)
			files, err := stageintest.FilesOfParts(j.records, j.sums)
			stageintest.NoError(t, err)
			s := &rack{job: j, t: t, want: make(map[string]string)}
			for p, e := range want {
				s.want[p] = e.Data
			}
			dir := t.TempDir()
			s.fillStaged(m, files, dir)
			maps.DeleteFunc(j.target.Objects, func(k stageintest.ObjectKey, _ []byte) bool { return k.Node == 1 })
			read := j.fs.Read.Load()
			m := m.WithState(1, cluster.Down, "")
			s.fillStaged(m, files, dir)
			s.holds(m, files)
			if n, size := j.fs.Read.Load()-read, int64(len(j.fs.Nodes[j.path].Data)); n == 0 || n > size*2/3 {
				t.Errorf("%d bytes were read of %d", n, size)
			}
		})
	}
}

// TestPackedOnce: whoever waits for something in a compressed tar waits for the
// same reading of it.
func TestPackedOnce(t *testing.T) {
	s := newRack(t, 2, "/src/a.tar.gz", Options{})
	s.archive("a.tar.gz", "m", 80, "")
	s.check()
	files, err := stageintest.FilesOfParts(s.records, s.sums)
	if err != nil {
		t.Fatal(err)
	}
	m := stageintest.ClusterMap(2).WithState(1, cluster.Down, "")
	f, err := s.filler(m, 0, &Scanned{Origins: s.plan.Origins}, files, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mine, err := f.list(m)
	if err != nil || len(mine) < 10 {
		t.Fatalf("%d pieces, %v", len(mine), err)
	}
	read := s.fs.Read.Load()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	errs := make(chan error, len(mine))
	for _, p := range mine {
		go func() { errs <- f.Need(ctx, p.Ino, 0, 1) }()
	}
	for range mine {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n, size := s.fs.Read.Load()-read, int64(len(s.fs.Nodes["/src/a.tar.gz"].Data)); n > size {
		t.Errorf("%d bytes were read of %d, for %d pieces", n, size, len(mine))
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	s.holds(m, files)
}
