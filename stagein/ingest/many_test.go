package ingest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/ingest"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// shelf is a set of archives that are staged together.
type shelf struct {
	*jobtest.Job
	t    *testing.T
	r    *rand.Rand
	size int64 // total of the archives
	want map[string]stageintest.Entry
}

func newShelf(t *testing.T, o stagein.Options) *shelf {
	t.Helper()
	s := &shelf{Job: jobtest.PackedJob(nil, 1<<30), t: t, r: stageintest.Rand(t), want: make(map[string]stageintest.Entry)}
	s.FS, s.Path, s.Opts = stageintest.NewFS(), "/src/*", o
	s.Memory, s.Lim.Piece, s.Lim.Checkpoint = 512<<10, 16<<10, 1<<10
	for _, d := range []string{"/", "/src"} {
		s.FS.Add(d, source.TypeDir|0o755, nil)
	}
	return s
}

// put adds an archive of n members, packed by c.
func (s *shelf) put(name string, c stageintest.Codec, n int) {
	s.t.Helper()
	packed := c.Pack(s.t, stageintest.Shard(s.t, s.r, strings.TrimSuffix(name, ".tar")+"-", n, 18_000))
	want, err := stageintest.TwinPacked(c, packed)
	stageintest.NoError(s.t, err)
	maps.Copy(s.want, want)
	s.FS.Add("/src/"+name, source.TypeRegular|0o644, packed)
	s.size += int64(len(packed))
}

// asIs packs a tar without compression.
var asIs = stageintest.Codec{
	Name: "plain", Pack: func(_ testing.TB, b []byte) []byte { return b }, Unpack: func(r io.Reader) (io.Reader, error) { return r, nil },
}

// deadly is a set of archives staged together by shares that die after a number of puts.
type deadly struct {
	s      *shelf
	m      *mortal
	deaths int // guarded by m.mu

	mu    sync.Mutex
	whole map[string]bool // guarded by mu; paths of archives that were complete when a share resumed
}

func newDeadly(s *shelf, lives int) *deadly {
	d := &deadly{s: s, m: newMortal(s.t, s.Job, lives), whole: make(map[string]bool)}
	d.m.grow = lives / 2 // so that a round ends eventually
	s.Again = func(part int, w *bytes.Buffer) bool {
		d.m.mu.Lock()
		d.deaths++
		d.m.mu.Unlock()
		return d.m.die(part, w)
	}
	s.Config, s.FS.OnRead = d.config, d.reads
	return d
}

// reads fails the test if a complete archive is read again.
func (d *deadly) reads(path string, off int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.whole[path] {
		d.s.t.Errorf("%s is read at %d again, which was whole", path, off)
	}
}

func (d *deadly) config(i int, cfg *ingest.Config) {
	d.m.begin(i, cfg)
	if cfg.Resume == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range cfg.Part.Archives[:cfg.Resume.Next] {
		d.whole[string(a.Path)] = true
	}
}

// check runs the stage-in and compares the tree with the one wanted.
func (d *deadly) check() {
	s, t := d.s, d.s.t
	t.Helper()
	got, err := s.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stageintest.CheckTree(t, got, s.want)
	if d.deaths == 0 {
		t.Error("no share has died")
	}
}

// zipOf packs the files of a tar as a zip archive and returns the expected entries.
func zipOf(t *testing.T, plain []byte) (packed []byte, want map[string]stageintest.Entry) {
	t.Helper()
	all, err := stageintest.TwinTar(plain)
	stageintest.NoError(t, err)
	var members []stageintest.ZipMember
	for path, e := range all {
		members = append(members, stageintest.ZipFile(path, []byte(e.Data)))
		e.Mode, e.Mtime = source.TypeRegular|0o640, metadata.TimeOf(time.Unix(1e9+1, 0))
		all[path] = e
	}
	return stageintest.WriteZip(t, "", members...), all
}

// TestCheckpointsOfSeveral: shares that die again and again while they read several archives resume from checkpoints
// between archives: no byte before a checkpoint is read again, and the tree is the same as without failures.
func TestCheckpointsOfSeveral(t *testing.T) {
	var went atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		for k := range uint64(4) {
			t.Run(fmt.Sprint("seed ", k), func(t *testing.T) {
				t.Parallel()
				s := newShelf(t, stagein.Options{})
				s.r = rand.New(rand.NewPCG(k, 77))
				s.Nodes, s.Stripe = 1+int(k%3), 30_000
				packed, want := zipOf(t, stageintest.Shard(t, s.r, "z-", 30, 12_000))
				s.FS.Add("/src/z.zip", source.TypeRegular|0o644, packed)
				s.size += int64(len(packed))
				maps.Copy(s.want, want)
				ways := []stageintest.Codec{stageintest.PartedCodecs[0], stageintest.PartedCodecs[1], stageintest.GzipOneMember, asIs, stageintest.Codecs[1], stageintest.Codecs[2]}
				for i := range 7 {
					s.put(fmt.Sprint("s", i, ".tar"), ways[(i+int(k))%len(ways)], 10+s.r.IntN(30))
				}
				d := newDeadly(s, 30+s.r.IntN(30))
				late := rand.New(rand.NewPCG(k, 78))
				d.m.forgets = func() bool { return late.IntN(4) == 0 }
				d.check()
				d.m.mu.Lock()
				went.Add(int64(d.m.went))
				d.m.mu.Unlock()
			})
		}
	})
	if went.Load() == 0 {
		t.Error("no share went on from a checkpoint")
	}
}

// TestCheckpointsOfOne: a part with a single archive, staged in part, resumes inside that archive.
func TestCheckpointsOfOne(t *testing.T) {
	for _, c := range []stageintest.Codec{stageintest.PartedCodecs[1], stageintest.GzipOneMember, asIs} {
		t.Run(c.Name, func(t *testing.T) {
			whole := newShelf(t, stagein.Options{Exclude: []source.Name{"*7"}})
			s := newShelf(t, stagein.Options{Exclude: []source.Name{"*7"}})
			for _, s := range []*shelf{whole, s} {
				s.Nodes, s.r = 1, rand.New(rand.NewPCG(5, 79))
				s.put("s.tar", c, 200)
			}
			var err error
			s.want, err = whole.Run(context.Background()) // without a kill
			stageintest.NoError(t, err)
			d := newDeadly(s, 40)
			d.check()
			if d.m.went == 0 {
				t.Error("no share went on from a checkpoint")
			}
		})
	}
}

// TestCheckpointsAnywhere: the tree is right wherever a share that reads several archives dies, after each object or
// piece it stores.
func TestCheckpointsAnywhere(t *testing.T) {
	r := stageintest.Rand(t)
	var archives [][]byte
	want := make(map[string]stageintest.Entry)
	for i := range 6 {
		members := stageintest.RandomMembers(r, tar.FormatPAX, 20)
		for k := range members {
			members[k].Name = fmt.Sprint("s", i, "/", members[k].Name)
			if members[k].Typeflag == tar.TypeLink {
				members[k].Linkname = fmt.Sprint("s", i, "/", members[k].Linkname)
			}
		}
		plain := stageintest.WriteTar(t, tar.FormatPAX, members)
		tree, err := stageintest.TwinTar(plain)
		stageintest.NoError(t, err)
		maps.Copy(want, tree)
		archives = append(archives, stageintest.PartedCodecs[i%2].Pack(t, plain))
	}
	for lives := 12; lives < 60; lives += 1 + r.IntN(3) {
		s := newShelf(t, stagein.Options{})
		s.Lim.Checkpoint, s.Lim.Piece = 1, 4096
		s.Nodes, s.want, s.Stripe = 1, want, 20_000
		for i, b := range archives {
			s.FS.Add(fmt.Sprint("/src/s", i, ".tar"), source.TypeRegular|0o644, b)
			s.size += int64(len(b))
		}
		newDeadly(s, lives).check()
		if t.Failed() {
			t.Fatalf("with %d lives", lives)
		}
	}
}

// TestCheckpointsOfSome: the same when only some files of the archives are selected, up to a number of files.
func TestCheckpointsOfSome(t *testing.T) {
	for name, o := range map[string]stagein.Options{
		"without some": {Exclude: []source.Name{"*7"}},
		"apart":        {Unpack: stagein.UnpackApart},
		"a number":     {Limit: 100},
	} {
		t.Run(name, func(t *testing.T) {
			whole := newShelf(t, o)
			s := newShelf(t, o)
			for _, s := range []*shelf{whole, s} {
				s.Nodes, s.r = 1, rand.New(rand.NewPCG(5, 79))
				for i := range 4 {
					s.put(fmt.Sprint("s", i, ".tar"), stageintest.PartedCodecs[i], 40)
				}
			}
			var err error
			s.want, err = whole.Run(context.Background()) // without a kill
			stageintest.NoError(t, err)
			newDeadly(s, 40).check()
		})
	}
}

// TestSkipKeepsMembersBefore: with on-error=skip, the members before the damage of an archive stay in the dataset, and
// their bytes are stored, also bytes not yet sent when the damage was found.
func TestSkipKeepsMembersBefore(t *testing.T) {
	for _, name := range []string{"b.tar", "b.tar.gz", "b.tar.zst"} {
		t.Run(name, func(t *testing.T) {
			s := jobtest.NewRack(t, 3, "/src/*", stagein.Options{OnError: stagein.OnErrorSkip})
			s.Archive("a.tar.gz", "a", 10, "")
			s.Archive(name, "b", 60, "")
			n := s.FS.Nodes["/src/"+name]
			s.FS.Add("/src/"+name, n.Info.Mode, n.Data[:len(n.Data)*2/3])
			got := s.Files() // fails if bytes are missing
			if kept := len(got) - 10; kept == 0 || kept == 60 || len(s.Skips) != 1 {
				t.Errorf("%d of 60 members are there, left out: %+v; want some, and the archive", kept, s.Skips)
			}
			for path, data := range got {
				if data != s.Want[path] {
					t.Errorf("%s has other bytes than in its archive", path)
				}
			}
		})
	}
}

// TestSkipOfChangedArchive: an archive that changes while it is read fails the stage-in, even with on-error=skip or if
// the change looks like damage: earlier members may be of either version. One that changes before is left out.
func TestSkipOfChangedArchive(t *testing.T) {
	for _, name := range []string{"b.tar", "b.tar.gz", "b.zip"} {
		for _, when := range []string{"before it is read", "while it is read", "and is damaged"} {
			t.Run(name+" "+when, func(t *testing.T) {
				s := jobtest.NewRack(t, 3, "/src/*", stagein.Options{OnError: stagein.OnErrorSkip})
				s.Archive(name, "b", 1000, "")
				clear(s.Want) // of b
				s.Archive("a.tar", "a", 10, "")
				n := s.FS.Nodes["/src/"+name]
				size := n.Info.Size
				change := sync.OnceFunc(func() {
					s.FS.Mu.Lock()
					defer s.FS.Mu.Unlock()
					if n.Info.Mtime++; when == "and is damaged" {
						n.Data = bytes.Repeat([]byte{0x55}, len(n.Data))
					}
				})
				if when == "before it is read" {
					s.Config = func(int, *ingest.Config) { change() } // runs once the plan exists
					s.Skipped(name + ": was changed")
					return
				}
				var planned atomic.Bool
				s.Config = func(int, *ingest.Config) { planned.Store(true) }
				s.FS.OnRead = func(path string, off int64) {
					if planned.Load() && path == "/src/"+name && off > size/16 && off < size/4 { // not in a zip's directory
						change()
					}
				}
				s.Fails("/src/"+name, "was changed", "some of its members may be staged already")
			})
		}
	}
}
