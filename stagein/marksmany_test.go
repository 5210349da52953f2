package stagein

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// deadly is archives that are staged together by shares which die when they have put something so many times.
type deadly struct {
	s      *shelf
	m      *mortal
	deaths int            // guarded by m.mu
	ebbs   map[int][]byte // guarded by m.mu; as JSON, by part
	solid  int64          // bytes of archives that can only be read from their beginning

	mu    sync.Mutex
	whole map[string]bool // guarded by mu; paths of those that were whole when a share went on
}

func newDeadly(s *shelf, lives int) *deadly {
	d := &deadly{s: s, m: newMortal(s.t, s.job, lives), ebbs: make(map[int][]byte), whole: make(map[string]bool)}
	kill, room := s.target.OnPut, s.q.OnPut
	s.q.OnPut = func(node metadata.NodeID, ino metadata.Ino, n int) error {
		if err := kill(node, ino, n); err != nil {
			return err
		}
		return room(node, ino, n)
	}
	s.q.dies = func() error { return kill(0, 0, 0) }
	s.quota, s.target = s.q, s.q.MemTarget
	s.again = func(part int, w *bytes.Buffer) bool {
		d.m.mu.Lock()
		d.deaths++
		d.m.mu.Unlock()
		return d.m.die(part, w)
	}
	s.config, s.fs.OnRead = d.config, d.reads
	return d
}

// reads wants nothing to be read of an archive that is whole.
func (d *deadly) reads(path string, off int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.whole[path] {
		d.s.t.Errorf("%s is read at %d again, which was whole", path, off)
	}
}

func (d *deadly) config(i int, cfg *ShareConfig) {
	d.m.begin(i, cfg)
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	cfg.Ebbed = func(e Ebb) error {
		b, err := json.Marshal(e)
		d.m.mu.Lock()
		defer d.m.mu.Unlock()
		d.ebbs[i] = b
		return err
	}
	if cfg.Resume == nil {
		delete(d.ebbs, i)
	}
	if b := d.ebbs[i]; b != nil {
		cfg.Ebb = new(Ebb)
		stageintest.NoError(d.s.t, json.Unmarshal(b, cfg.Ebb))
	}
	if cfg.Part.Try > 0 {
		cfg.Free = func(id metadata.NodeID) (int64, bool) { return d.s.each - d.s.q.has(id), true }
	}
	m := cfg.Resume
	if m == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, a := range cfg.Part.Archives[:m.Next] {
		if !slices.ContainsFunc(m.Open, func(b Begun) bool { return b.Archive == k }) {
			d.whole[string(a.Path)] = true
		}
	}
}

// check stages, and wants all that was staged to be right, and little to be read again.
func (d *deadly) check() {
	s, t := d.s, d.s.t
	t.Helper()
	var read int64
	s.settled = func() { // what stays in the source is read then, to be compared
		read = s.fs.Read.Load()
		d.mu.Lock()
		defer d.mu.Unlock()
		clear(d.whole)
	}
	got, err := s.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stageintest.CheckTree(t, got, s.want)
	if d.m.went == 0 || d.deaths == 0 {
		t.Errorf("%d shares have died, and %d went on from a mark", d.deaths, d.m.went)
	}
	if most := s.size + 64<<10 + int64(d.deaths)*(inFlight+d.solid); read > most {
		t.Errorf("%d bytes were read of %d, with %d deaths; want at most %d", read, s.size, d.deaths, most)
	}
}

// inFlight is what a share reads at the most before it has stored it, and what lies between two marks, in these tests.
const inFlight = 900 << 10

// small makes what a share reads ahead little beside an archive.
func (s *shelf) small() {
	s.memory, s.lim.piece, s.lim.mark, s.lim.apart, s.lim.inside = 512<<10, 16<<10, 32<<10, 40_000, 60_000
}

// zipOf packs the files of a tar as a zip archive, and is what they become.
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

// TestMarksOfSeveral: shares that die again and again while they read several archives go on from their
// marks, each archive from its own place: no byte of one that was whole is read again, of the others only what was in
// flight, and what comes of it is what there would be otherwise.
func TestMarksOfSeveral(t *testing.T) {
	for k := range uint64(10) {
		t.Run(fmt.Sprint("seed ", k), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(k, 77))
			each, solid := int64(1<<30), int64(0)
			if k%2 == 1 {
				each = 2 << 20
			}
			s := newShelf(t, each, Options{})
			s.r = r
			s.nodes, s.stripe = 1+int(k%3), 30_000
			s.free = func(metadata.NodeID) (int64, bool) { return each, true }
			s.small()
			ways := []stageintest.Codec{stageintest.SeekableCodecs[0], stageintest.SeekableCodecs[1], stageintest.SeekableCodecs[2], stageintest.GzipOneMember, asIs}
			if each == 1<<30 {
				ways = append(ways, stageintest.Codecs[1], stageintest.Codecs[2])
				packed, want := zipOf(t, stageintest.Shard(t, r, "z-", 60, 12_000))
				s.fs.Add("/src/z.zip", source.TypeRegular|0o644, packed)
				s.size += int64(len(packed))
				for path, e := range want {
					s.want[path] = e
				}
			}
			for i := range 8 {
				c := ways[(i+int(k))%len(ways)]
				packed := s.put(fmt.Sprint("s", i, ".tar"), c, 20+r.IntN(80))
				if c.Name == stageintest.Codecs[1].Name || c.Name == stageintest.Codecs[2].Name {
					solid += int64(len(packed))
				}
			}
			d := newDeadly(s, 60+r.IntN(60))
			late := rand.New(rand.NewPCG(k, 78))
			d.m.forgets = func() bool { return late.IntN(4) == 0 }
			d.solid = solid
			d.check()
			if (s.spilled > 0) != (each < 1<<30) {
				t.Errorf("%d files stay in the source", s.spilled)
			}
		})
	}
}

// TestMarksAnywhere: wherever a share dies that reads several archives, after each thing that it stores, what
// comes of it is right.
func TestMarksAnywhere(t *testing.T) {
	r := stageintest.Rand(t)
	var archives [][]byte
	want := make(map[string]stageintest.Entry)
	for i := range 4 {
		members := stageintest.RandomMembers(r, tar.FormatPAX, 60)
		for k := range members {
			members[k].Name = fmt.Sprint("s", i, "/", members[k].Name)
			if members[k].Typeflag == tar.TypeLink {
				members[k].Linkname = fmt.Sprint("s", i, "/", members[k].Linkname)
			}
		}
		plain := stageintest.WriteTar(t, tar.FormatPAX, members)
		tree, err := stageintest.TwinTar(plain)
		stageintest.NoError(t, err)
		for path, e := range tree {
			want[path] = e
		}
		archives = append(archives, stageintest.SeekableCodecs[i%2].Pack(t, plain))
	}
	for lives := 12; lives < 60; lives++ {
		s := newShelf(t, 1<<30, Options{})
		s.small()
		s.lim.mark, s.lim.apart, s.lim.piece = 1, 4096, 4096
		s.nodes, s.want, s.stripe = 1, want, 20_000
		for i, b := range archives {
			s.fs.Add(fmt.Sprint("/src/s", i, ".tar"), source.TypeRegular|0o644, b)
			s.size += int64(len(b))
		}
		newDeadly(s, lives).check()
		if t.Failed() {
			t.Fatalf("with %d lives", lives)
		}
	}
}

// TestMarksOfSome: so it is with what is wanted of archives, up to a number of files.
func TestMarksOfSome(t *testing.T) {
	for name, o := range map[string]Options{
		"without some": {Exclude: []source.Name{"*7"}},
		"apart":        {Unpack: UnpackApart},
		"a number":     {Limit: 130},
	} {
		t.Run(name, func(t *testing.T) {
			whole := newShelf(t, 1<<30, o)
			s := newShelf(t, 1<<30, o)
			for _, s := range []*shelf{whole, s} {
				s.small()
				s.nodes, s.r = 1, rand.New(rand.NewPCG(5, 79))
				for i := range 4 {
					s.put(fmt.Sprint("s", i, ".tar"), stageintest.SeekableCodecs[i], 50)
				}
			}
			var err error
			s.want, err = whole.run(context.Background()) // which nobody has killed
			stageintest.NoError(t, err)
			newDeadly(s, 40).check()
		})
	}
}
