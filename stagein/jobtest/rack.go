package jobtest

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// FillStaged runs the fills of the staged dataset on the nodes that are up in m.
func (s *Rack) FillStaged(m cluster.Map, files stagein.Files, dir string) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	s.Swarm = NewSwarm(s.Job)
	errs := make(chan error, s.Nodes)
	up := m.Up()
	for _, id := range up {
		go func() {
			f, err := s.Filler(m, id, &scan.Scanned{Origins: s.Plan.Origins}, files, dir)
			if err == nil {
				err = s.RunFill(ctx, f)
				if e := f.Close(); err == nil {
					err = e
				}
			}
			errs <- err
		}()
	}
	for range up {
		if err := <-errs; err != nil {
			s.T.Error(err)
		}
	}
}

// Holds checks that the nodes have every file where m places it.
func (s *Rack) Holds(m cluster.Map, files *stageintest.MemFiles) {
	s.T.Helper()
	for _, r := range files.Records {
		if r.Attr.Mode&source.TypeMask != source.TypeRegular || r.Hardlink != "" {
			continue
		}
		want, got := s.Want[r.Path], make([]byte, r.Attr.Size)
		order, size, chunk := m.Order(r.Attr.Ino, r.Attr.Layout), r.Attr.Size, r.Attr.Layout.Chunk()
		if r.Attr.Layout.Kind == metadata.Local {
			chunk = max(size, 1)
		}
		width := int64(len(order))
		for k := int64(0); k*chunk < size; k++ {
			owner := order[k%width]
			node := m.Holder(r.Attr.Ino, owner)
			pos, n, off := k*chunk, min(chunk, size-k*chunk), k/width*chunk
			if node != owner {
				off = datapath.StandIn(chunk, len(order), int(k%width), size, off)
			}
			if b := s.Target.Objects[stageintest.ObjectKey{Node: node, Ino: r.Attr.Ino}]; int64(len(b)) >= off+n {
				copy(got[pos:pos+n], b[off:])
			}
		}
		if string(got) != want {
			s.T.Errorf("%q has other bytes than before", r.Path)
		}
	}
}

// Rack is a directory /src with archives of small files, and their content.
type Rack struct {
	*Job
	T    *testing.T
	Want map[string]string // content by path
}

func NewRack(t *testing.T, nodes int, pattern string, o stagein.Options) *Rack {
	s := &Rack{T: t, Want: map[string]string{}}
	s.Job = &Job{FS: stageintest.NewFS(), Nodes: nodes, Path: pattern, Stripe: 1 << 20, Opts: o}
	s.Lim = Bounds{Piece: 2048, Carry: 1024}
	for _, d := range []string{"/", "/src"} {
		s.FS.Add(d, source.TypeDir|0o755, nil)
	}
	return s
}

// Archive adds an archive with n members prefix0, prefix1, … to the rack and expects them below under. Its suffix
// determines its kind.
func (s *Rack) Archive(name, prefix string, n int, under string) {
	s.T.Helper()
	var members []stageintest.Member
	for i := range n {
		p, data := fmt.Sprint(prefix, i), fmt.Sprintf("%s of %s", strings.Repeat("x", i*97%3000), name)
		members = append(members, stageintest.TarFile(p, []byte(data)))
		s.Want[path.Join(under, p)] = data
	}
	s.FS.Add("/src/"+name, source.TypeRegular|0o644, stageintest.PackAs(s.T, name, members))
}

// Staged stages the source, and returns the entries of the dataset by path.
func (s *Rack) Staged() map[string]stageintest.Entry {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tree, err := s.Run(ctx)
	if err != nil {
		s.T.Fatal(err)
	}
	return tree
}

// Files returns the content of the dataset's files.
func (s *Rack) Files() map[string]string {
	s.T.Helper()
	got := map[string]string{}
	for p, e := range s.Staged() {
		if e.Mode&source.TypeMask == source.TypeRegular {
			got[p] = e.Data
		}
	}
	return got
}

func (s *Rack) Check() {
	s.T.Helper()
	if got := s.Files(); !maps.Equal(got, s.Want) {
		s.T.Errorf("got %q, want %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(s.Want)))
	}
}

// Fails expects an error that contains all of parts.
func (s *Rack) Fails(parts ...string) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := s.Run(ctx); !stageintest.ErrorHas(err, parts...) {
		s.T.Errorf("%v, want an error with %q", err, parts)
	}
}

// Skipped expects exactly these entries to be left out, and all others to be staged.
func (s *Rack) Skipped(parts ...string) {
	s.T.Helper()
	s.Check()
	if len(s.Skips) != len(parts) || s.Sum.Skipped+int64(len(s.Plan.Skips)) != int64(len(parts)) {
		s.T.Errorf("left out: %+v (%d counted), want %q", s.Skips, s.Sum.Skipped, parts)
		return
	}
	for _, p := range parts {
		if !slices.ContainsFunc(s.Skips, func(k stagein.Skip) bool { return strings.Contains(string(k.Path)+": "+k.Error, p) }) {
			s.T.Errorf("left out: %+v, want one with %q", s.Skips, p)
		}
	}
}

// TooLarge returns a tar of half random bytes, larger than 4 nodes with roomEach bytes have room for.
func TooLarge(t *testing.T) []byte {
	t.Helper()
	return stageintest.HalfRandomTar(t, 60)
}

const RoomEach = 300 << 10

func HasRoom(metadata.NodeID) (int64, bool) { return RoomEach, true }

// PackedJob returns a job of a compressed tar on 4 nodes with each bytes free.
func PackedJob(archive []byte, each int64) *Job {
	j := TarJob(archive, 4)
	j.Memory, j.Stripe = 32<<20, 40_000
	j.Lim = Bounds{Piece: 64 << 10, Carry: 1024, Checkpoint: 64 << 10}
	j.Free = func(metadata.NodeID) (int64, bool) { return each, true }
	return j
}
