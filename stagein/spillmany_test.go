package stagein

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// shelf is archives that are staged together, by nodes that have not enough room for them.
type shelf struct {
	*job
	t     *testing.T
	r     *rand.Rand
	each  int64 // bytes that a node takes
	size  int64 // of the archives
	files int
	want  map[string]stageintest.Entry
	q     *quota
}

func newShelf(t *testing.T, each int64, o Options) *shelf {
	t.Helper()
	s := &shelf{job: spillJob(nil, each), t: t, r: stageintest.Rand(t), each: each, want: make(map[string]stageintest.Entry), q: newQuota(each)}
	s.fs, s.path, s.opts = stageintest.NewFS(), "/src/*", o
	s.memory, s.lim.small = 4<<20, 1<<20 // what is unpacked at a time is less
	s.quota, s.target = s.q, s.q.MemTarget
	for _, d := range []string{"/", "/src"} {
		s.fs.Add(d, source.TypeDir|0o755, nil)
	}
	return s
}

// put puts an archive of n members on it, packed by c, and returns it.
func (s *shelf) put(name string, c stageintest.Codec, n int) []byte {
	s.t.Helper()
	prefix := strings.TrimSuffix(name, ".tar") + "-"
	packed := c.Pack(s.t, stageintest.Shard(s.t, s.r, prefix, n, 18_000))
	want, err := stageintest.TwinPacked(c, packed)
	stageintest.NoError(s.t, err)
	for p, e := range want {
		if s.opts.Unpack == UnpackApart {
			p = strings.TrimSuffix(name, ".tar") + "/" + p
		}
		s.want[p] = e
	}
	s.fs.Add("/src/"+name, source.TypeRegular|0o644, packed)
	s.size, s.files = s.size+int64(len(packed)), s.files+n
	return packed
}

// check stages, and wants what is here and what is not to mix in each archive.
func (s *shelf) check() {
	s.t.Helper()
	got, err := s.run(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	for p, e := range got {
		if e.Mode&source.TypeMask == source.TypeDir && s.want[p].Mode == 0 {
			delete(got, p) // apart
		}
	}
	stageintest.CheckTree(s.t, got, s.want)
	if s.sum.SourceBytes > s.size+64<<10 {
		s.t.Errorf("%d bytes were read of %d", s.sum.SourceBytes, s.size)
	}
	if n := len(s.want); s.spilled < n/8 || s.spilled > n*7/8 {
		s.t.Errorf("%d files of %d stay in the source", s.spilled, n)
	}
	var stored int64
	for _, b := range s.target.Objects {
		stored += pages(int64(len(b)))
	}
	if room := int64(s.nodes) * (s.each - leastSpare); stored < room*6/10 || s.sum.Bytes > stored {
		s.t.Errorf("%d bytes are here of %d for which there is room; progress says %d", stored, room, s.sum.Bytes)
	}
}

// TestPackedSpillsInLittle: what is kept to begin in the middle of members of gzip is bounded for all
// archives together.
func TestPackedSpillsInLittle(t *testing.T) {
	for _, n := range []int{1, 4} {
		s := newShelf(t, 1<<20, Options{})
		s.lim.windows = 40_000
		for i := range n {
			s.put(fmt.Sprint("s", i, ".tar"), stageintest.GzipOneMember, 400/n)
		}
		s.check()
		sum, inside := 0, 0
		for _, o := range s.plan.Origins.Sources {
			places, err := unpack.ParsePlaces(o.Places)
			stageintest.NoError(t, err)
			for _, p := range places {
				if sum += len(p.Window); p.Window != "" {
					inside++
				}
			}
		}
		if int64(sum) > s.lim.windows || inside < 4 {
			t.Errorf("%d archives: %d bytes are kept for %d places, want at most %d", n, sum, inside, s.lim.windows)
		}
	}
}

// asIs is a tar that is not compressed.
var asIs = stageintest.Codec{
	Name: "plain", Pack: func(_ testing.TB, b []byte) []byte { return b }, Unpack: func(r io.Reader) (io.Reader, error) { return r, nil },
}

// TestPackedSpillsSeveral: several compressed tars for which the nodes have no room are read by
// several nodes, each of which fills its part of the room; what has none stays in each of them,
// also if one is a plain tar, or so small that it has no place in its middle.
func TestPackedSpillsSeveral(t *testing.T) {
	for name, o := range map[string]Options{"in one tree": {}, "apart": {Unpack: UnpackApart}} {
		for _, c := range append(stageintest.SeekableCodecs[:3:3], stageintest.GzipOneMember) {
			t.Run(name+" "+c.Name, func(t *testing.T) {
				s := newShelf(t, 1<<20, o)
				for i := range 6 {
					s.put(fmt.Sprint("s", i, ".tar"), c, 60)
				}
				s.put("t.tar", asIs, 60)
				s.put("tiny.tar", stageintest.Codecs[1], 2)
				s.put("one.tar", stageintest.GzipOneMember, 60)
				s.check()
				if len(s.plan.Parts) != 4 {
					t.Errorf("%d nodes read", len(s.plan.Parts))
				}
			})
		}
	}
}

// TestPackedSpillsSome: so it is with what is selected of archives, of one too.
func TestPackedSpillsSome(t *testing.T) {
	c := stageintest.SeekableCodecs[1]
	list := func(s *shelf) {
		var b bytes.Buffer
		for i, p := range slices.Sorted(maps.Keys(s.want)) {
			if i%10 == 0 {
				delete(s.want, p)
				continue
			}
			fmt.Fprintln(&b, p)
		}
		s.fs.Add("/list", source.TypeRegular|0o644, b.Bytes())
	}
	without := func(s *shelf) {
		maps.DeleteFunc(s.want, func(p string, _ stageintest.Entry) bool { return strings.HasSuffix(p, "7") })
	}
	for name, x := range map[string]struct {
		archives int
		o        Options
		leave    func(*shelf)
	}{
		"a list of one":        {1, Options{List: "/list"}, list},
		"a list of several":    {3, Options{List: "/list"}, list},
		"not all of one":       {1, Options{Exclude: []source.Name{"*7"}}, without},
		"not all":              {5, Options{Exclude: []source.Name{"*7"}}, without},
		"all of one, by limit": {1, Options{Limit: 1000}, func(*shelf) {}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t, 1<<20, x.o)
			for i := range x.archives {
				s.put(fmt.Sprint("s", i, ".tar"), c, 400/x.archives)
			}
			x.leave(s)
			s.check()
		})
	}
}

// TestPackedSpillsDamaged: what can be read of a compressed tar is staged with on-error=skip,
// and what of that has no room stays in it.
func TestPackedSpillsDamaged(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n, " archives"), func(t *testing.T) {
			s := newShelf(t, 1<<20, Options{OnError: OnErrorSkip})
			for i := range n {
				packed := s.put(fmt.Sprint("s", i, ".tar"), stageintest.SeekableCodecs[0], 500/n)
				s.fs.Add(fmt.Sprint("/src/s", i, ".tar"), source.TypeRegular|0o644, packed[:len(packed)*9/10])
			}
			got, err := s.run(context.Background())
			stageintest.NoError(t, err)
			if len(s.skips) != n {
				t.Errorf("%d things were left out: %+v", len(s.skips), s.skips)
			}
			if len(got) < s.files*7/10 || len(got) == s.files {
				t.Errorf("%d files of %d", len(got), s.files)
			}
			for p, e := range got {
				if e.Data != s.want[p].Data {
					t.Errorf("%q: %d bytes differ from the twin's %d", p, len(e.Data), len(s.want[p].Data))
				}
			}
			if s.spilled < s.files/8 || s.spilled > s.files*7/8 {
				t.Errorf("%d files of %d stay in the source", s.spilled, s.files)
			}
		})
	}
}

// TestPackedHasNoPlaceAmongSeveral: when one of several archives has no place in its middle to
// begin at, those that have no room are refused.
func TestPackedHasNoPlaceAmongSeveral(t *testing.T) {
	for name, c := range map[string]stageintest.Codec{"a stream of zstd": stageintest.Codecs[1], "xz": stageintest.Codecs[2]} {
		for _, o := range []Options{{}, {Exclude: []source.Name{"*77"}}, {OnError: OnErrorSkip}} {
			t.Run(fmt.Sprint(name, o), func(t *testing.T) {
				s := newShelf(t, 512<<10, o)
				for i := range 3 {
					s.put(fmt.Sprint("s", i, ".tar"), stageintest.SeekableCodecs[1], 100)
				}
				s.put("none.tar", c, 100)
				_, err := s.run(context.Background())
				if !stageintest.ErrorHas(err, " needs room for ", " 512.0 KiB", "no place in the middle to begin at", "unpack=no", "no space left") {
					t.Errorf("%v, want a refusal", err)
				}
			})
		}
	}
}
