package model

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	slots   = 6       // handles
	most    = 4 << 20 // bytes of a file
	chunk   = 1 << 20 // distance after which data is on another node
	deepest = 4       // components of a path
)

var (
	names   = []string{"a", "b", "c", "d", "e"}
	strange = []string{strings.Repeat("n", 255), strings.Repeat("n", 256), "\xff\n ", "a:b", "...", "-"}
	targets = []string{"a", "b", "c/a", "d/b/c", "e", ".", "a/a"}
)

// Generator makes steps that are likely to have an effect.
type Generator struct {
	*rand.Rand
	Mounts int
	Kinds  []string // kinds of steps to make; repeated by weight
}

// NewGenerator returns a generator with this seed.
func NewGenerator(seed uint64, mounts int) *Generator {
	g := &Generator{Rand: rand.New(rand.NewPCG(seed, 0)), Mounts: mounts}
	for _, k := range kindNames {
		g.Kinds = append(g.Kinds, slices.Repeat([]string{k}, kinds[k].weight)...)
	}
	return g
}

// Next returns a step for this state.
func (g *Generator) Next(f *FS) Op {
	o := Op{Mount: g.IntN(g.Mounts), Kind: pick(g, g.Kinds)}
	k := kinds[o.Kind]
	for field := range strings.FieldsSeq(k.fields) {
		g.fill(f, &o, field)
	}
	return o
}

func pick[T any](g *Generator, s []T) T { return s[g.IntN(len(s))] }

func (g *Generator) fill(f *FS, o *Op, field string) {
	switch field {
	case "h":
		o.H = g.slot(f, o.Kind != "open")
	case "path":
		o.Path = g.path(f, o.Kind != "mkdir" && o.Kind != "symlink" && o.Kind != "mkfifo")
	case "to":
		o.To = g.to(f, o.Kind)
	case "name":
		o.Name = pick(g, []string{"a", "b", "c", "d", strings.Repeat("x", 256)})
	case "mode":
		o.Mode = pick(g, []uint32{0o644, 0o600, 0o755, 0o777, 0o444, 0o2755, 0o1777, 0, 0o4711})
	case "flags":
		o.Flags = g.flags(o.Kind)
	case "off":
		o.Off = g.offset(o.Kind)
	case "len":
		o.Len = g.length(o.Kind)
	case "seed":
		o.Seed = g.seed(o.Kind)
	}
}

func (g *Generator) seed(kind string) int64 {
	seed := 1 + g.Int64N(1e6)
	switch {
	case kind == "copyrange":
		return g.offset(kind)
	case (kind == "utimens" || kind == "futimens") && seed%2 == 0:
		return 2 + seed%4 // times that a file may have had before
	}
	return seed
}

func (g *Generator) slot(f *FS, open bool) int {
	if open && len(f.handles) > 0 && g.IntN(20) > 0 {
		return pick(g, slices.Sorted(maps.Keys(f.handles)))
	}
	return g.IntN(slots)
}

// path returns mostly an existing path, or one beside it.
func (g *Generator) path(f *FS, there bool) string {
	all := f.paths()
	n := g.IntN(10)
	if len(all) > 0 && (there && n < 7 || n < 2) {
		return pick(g, all)
	}
	var dirs []string
	for _, p := range all {
		if i, no := f.find(p, true); no == 0 && i.dir() && strings.Count(p, "/") < deepest-1 {
			dirs = append(dirs, p+"/")
		}
	}
	dirs = append(dirs, "", "")
	if n == 9 {
		return pick(g, names) + "/" + pick(g, names)
	}
	return pick(g, dirs) + g.name()
}

func (g *Generator) name() string {
	if g.IntN(25) == 0 {
		return pick(g, strange)
	}
	return pick(g, names)
}

func (g *Generator) to(f *FS, kind string) string {
	switch kind {
	case "symlink":
		return pick(g, targets)
	case "copyrange":
		return string('0' + byte(g.slot(f, true)))
	}
	return g.path(f, g.IntN(2) == 0)
}

func (g *Generator) flags(kind string) int {
	if kind == "open" {
		v := pick(g, []int{unix.O_RDONLY, unix.O_RDWR, unix.O_RDWR, unix.O_WRONLY})
		for _, b := range []int{unix.O_CREAT, unix.O_CREAT, unix.O_EXCL, unix.O_TRUNC, unix.O_APPEND, unix.O_DSYNC} {
			if g.IntN(4) == 0 {
				v |= b
			}
		}
		if v&unix.O_CREAT == 0 {
			v &^= unix.O_EXCL // undefined without O_CREAT
			v |= pick(g, []int{0, 0, 0, unix.O_NOFOLLOW, unix.O_DIRECTORY, unix.O_DIRECTORY})
		}
		return v
	}
	if kind == "fallocate" {
		return pick(g, []int{0, 0, keepSize, keepSize | punchHole, keepSize | punchHole, zeroRange, zeroRange | keepSize, punchHole})
	}
	bits := []int{0, 0}
	for _, fl := range kinds[kind].flags {
		bits = append(bits, fl.bits)
	}
	return pick(g, bits)
}

// offset returns an offset near a boundary: the start, a page, a chunk.
func (g *Generator) offset(kind string) int64 {
	off := pick(g, []int64{0, 0, 1, 100, 4095, 4096, 10_000, 65_536, chunk - 1, chunk, chunk + 4096, 2*chunk - 100})
	if g.IntN(2) == 0 {
		off += g.Int64N(5000)
	}
	if kind == "lseek" && g.IntN(3) == 0 {
		off = -g.Int64N(5000)
	}
	return off
}

func (g *Generator) length(kind string) int64 {
	n := pick(g, []int64{0, 1, 10, 1000, 4096, 5000, 70_000, 131_072})
	switch {
	case kind == "truncate" || kind == "ftruncate":
		return g.offset(kind)
	case kind == "setxattr":
		return min(n, 4096)
	case g.IntN(40) == 0:
		return chunk + g.Int64N(chunk/2)
	}
	return n
}
