package metadatatest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// node is an inode of the model.
type node struct {
	ino     metadata.Ino
	dir     bool
	nlink   uint32
	entries map[string]*node
}

func (n *node) below(top *node) bool {
	if n == top {
		return true
	}
	for _, c := range top.entries {
		if c.dir && n.below(c) {
			return true
		}
	}
	return false
}

// player applies random operations to the store and to the model.
type player struct {
	*fixture
	rng  *rand.Rand
	top  *node
	dirs []*node // linked directories
}

// testModel: after any history of operations the store equals the model.
func testModel(f *fixture) {
	seed := uint64(time.Now().UnixNano())
	f.Logf("seed %d", seed)
	top := &node{ino: root, dir: true, nlink: 2, entries: map[string]*node{}}
	p := &player{fixture: f, rng: rand.New(rand.NewPCG(seed, 0)), top: top, dirs: []*node{top}}
	for range 600 {
		p.step()
	}
	var got, want strings.Builder
	p.dumpModel(&want, top, "")
	p.dumpStore(&got, root, "")
	if got.String() != want.String() {
		f.Errorf("the store has\n%sthe model has\n%s", got.String(), want.String())
	}
}

func (p *player) name() string { return string(rune('a' + p.rng.IntN(5))) }

func (p *player) dir() *node { return p.dirs[p.rng.IntN(len(p.dirs))] }

func (p *player) step() {
	d, name := p.dir(), p.name()
	var what string
	var got, want error
	switch p.rng.IntN(8) {
	case 0, 1:
		what, got, want = p.create(d, name)
	case 2:
		what, got, want = p.mkdir(d, name)
	case 3:
		what = "Unlink"
		want = d.remove(name, false)
		_, got = p.s.Unlink(ctx, d.ino, name)
	case 4:
		what = "Rmdir"
		want = d.remove(name, true)
		got = p.s.Rmdir(ctx, d.ino, name)
	case 5:
		what, got, want = p.link(d, name)
	default:
		what, got, want = p.move(d, name)
	}
	if want == nil && got != nil || want != nil && !errors.Is(got, want) {
		p.Fatalf("%s(%v, %q) = %v, want %v", what, d.ino, name, got, want)
	}
	p.dirs = p.dirs[:0]
	p.collect(p.top)
}

// collect lists the directories in a fixed order, so that a seed gives the same run.
func (p *player) collect(n *node) {
	p.dirs = append(p.dirs, n)
	for _, name := range sortedNames(n) {
		if c := n.entries[name]; c.dir {
			p.collect(c)
		}
	}
}

func sortedNames(n *node) []string {
	var names []string
	for name := range n.entries {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (p *player) create(d *node, name string) (string, error, error) {
	a, err := p.s.Create(ctx, d.ino, name, metadata.New{Mode: reg | 0o600})
	if d.entries[name] != nil {
		return "Create", err, syscall.EEXIST
	}
	d.entries[name] = &node{ino: a.Ino, nlink: 1}
	return "Create", err, nil
}

func (p *player) mkdir(d *node, name string) (string, error, error) {
	a, err := p.s.Mkdir(ctx, d.ino, name, metadata.New{Mode: dir | 0o700})
	if d.entries[name] != nil {
		return "Mkdir", err, syscall.EEXIST
	}
	d.entries[name] = &node{ino: a.Ino, dir: true, nlink: 2, entries: map[string]*node{}}
	d.nlink++
	return "Mkdir", err, nil
}

func (p *player) link(d *node, name string) (string, error, error) {
	src := p.dir().entries[p.name()]
	if src == nil || src.dir {
		return "nothing", nil, nil
	}
	_, err := p.s.Link(ctx, src.ino, d.ino, name)
	if d.entries[name] != nil {
		return "Link", err, syscall.EEXIST
	}
	d.entries[name] = src
	src.nlink++
	return "Link", err, nil
}

func (n *node) remove(name string, wantDir bool) error {
	c := n.entries[name]
	switch {
	case c == nil:
		return syscall.ENOENT
	case wantDir && !c.dir:
		return syscall.ENOTDIR
	case !wantDir && c.dir:
		return syscall.EISDIR
	case len(c.entries) > 0:
		return syscall.ENOTEMPTY
	}
	delete(n.entries, name)
	if c.dir {
		n.nlink--
	} else {
		c.nlink--
	}
	return nil
}

func (p *player) move(d *node, name string) (string, error, error) {
	to, newName := p.dir(), p.name()
	flags := metadata.RenameFlags(p.rng.IntN(3))
	src, dst := d.entries[name], to.entries[newName]
	exchange := flags == metadata.RenameExchange
	loop := src != nil && src.dir && to.below(src) || dst != nil && dst.dir && exchange && d.below(dst)
	_, got := p.s.Rename(ctx, metadata.Rename{Dir: d.ino, Name: name, NewDir: to.ino, NewName: newName, Flags: flags})
	what := fmt.Sprintf("Rename to %v %q flags %d", to.ino, newName, flags)
	switch {
	case src == nil, exchange && dst == nil:
		return what, got, syscall.ENOENT
	case flags == metadata.RenameNoReplace && dst != nil:
		return what, got, syscall.EEXIST
	case src == dst:
		return what, got, nil
	case dst != nil && !exchange && !src.dir && dst.dir:
		return what, got, syscall.EISDIR
	case dst != nil && !exchange && src.dir && !dst.dir:
		return what, got, syscall.ENOTDIR
	case loop:
		return what, got, syscall.EINVAL
	}
	if dst != nil && !exchange {
		if want := to.remove(newName, src.dir); want != nil {
			return what, got, want
		}
	}
	d.put(name, nil)
	if exchange {
		to.put(newName, nil)
		d.put(name, dst)
	}
	to.put(newName, src)
	return what, got, nil
}

// put sets an entry and counts directories.
func (n *node) put(name string, c *node) {
	if old := n.entries[name]; old != nil && old.dir {
		n.nlink--
	}
	delete(n.entries, name)
	if c != nil {
		n.entries[name] = c
		if c.dir {
			n.nlink++
		}
	}
}

func (p *player) dumpModel(b *strings.Builder, n *node, path string) {
	fmt.Fprintf(b, "%s/ %v %d\n", path, n.ino, n.nlink)
	for _, name := range sortedNames(n) {
		c := n.entries[name]
		if c.dir {
			p.dumpModel(b, c, path+"/"+name)
			continue
		}
		fmt.Fprintf(b, "%s/%s %v %d\n", path, name, c.ino, c.nlink)
	}
}

func (p *player) dumpStore(b *strings.Builder, ino metadata.Ino, path string) {
	fmt.Fprintf(b, "%s/ %v %d\n", path, ino, p.attr(ino).Nlink)
	for _, e := range p.list(ino, 2) {
		if e.Mode&fmtM == dir {
			p.dumpStore(b, e.Ino, path+"/"+e.Name)
			continue
		}
		fmt.Fprintf(b, "%s/%s %v %d\n", path, e.Name, e.Ino, p.attr(e.Ino).Nlink)
	}
}
