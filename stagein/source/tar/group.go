package tar

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// MaxSpecial is the most data that the extended headers of one member can
// have, in bytes; it bounds what a Group remembers.
const MaxSpecial = 1 << 20

// Step is what a Group makes of a block.
type Step uint8

// The steps.
const (
	More   Step = iota // the group goes on: give it the next block
	Member             // Item is whole; its data begins at the next block
	Skip               // a header that stands for nothing, without data
	End                // the end of the archive
)

// Group reads the headers of one member: PAX and GNU extensions, then the
// member's own. It is given the blocks one after another, and remembers them
// all, so that another reader can be given what is there of a group that is
// not whole. The zero value is ready for a group at offset 0.
type Group struct {
	// Item is the member, after Member.
	Item source.Item
	// Mtime is the time that a PAX global header gave to all members.
	Mtime *metadata.Time

	start, pos int64
	raw        []byte
	o          overrides
	special    byte          // the extension whose data comes; 0 is none
	want       int64         // of its data, still to come
	data       []byte        // of it, so far
	total      int64         // of the data of all extensions
	lone       bool          // the block before was zeros
	holes      *sparseReader // a sparse member's map comes; nil is not
}

// Reset begins a new group at offset pos. A global header stays in force.
func (g *Group) Reset(pos int64) {
	*g = Group{Mtime: g.Mtime, start: pos, pos: pos, raw: g.raw[:0], data: g.data[:0]}
}

// Start is the offset of the group's first block, Pos that of the next one.
func (g *Group) Start() int64 { return g.start }

// Pos is the offset of the block that Add wants next.
func (g *Group) Pos() int64 { return g.pos }

// Fresh reports whether no block was given since Reset.
func (g *Group) Fresh() bool { return g.pos == g.start }

// Lone reports whether the last block was the first of zeros, which may be
// what is left of an archive's end.
func (g *Group) Lone() bool { return g.lone }

// Raw is the blocks of the group so far, valid until the next Reset or Add.
func (g *Group) Raw() []byte { return g.raw }

// Data is how many bytes of data the member has in the archive: none if it is
// anything but a regular file.
func (g *Group) Data() int64 { return g.Item.Stored() }

// Add takes the next block. An error names the member and its offset; a
// RefusedError leaves the group at the member's data.
func (g *Group) Add(b []byte) (Step, error) {
	step, err := g.add(b)
	if err != nil {
		return step, g.wrap(err)
	}
	return step, nil
}

func (g *Group) wrap(err error) error {
	name := g.o.name(g.Item.Path)
	if name == "" {
		return fmt.Errorf("at offset %d: %w", g.start, err)
	}
	return fmt.Errorf("member %q at offset %d: %w", name, g.start, err)
}

func (g *Group) add(b []byte) (Step, error) {
	if len(b) != source.BlockSize {
		return More, fmt.Errorf("block of %d bytes: %w", len(b), syscall.EBADMSG)
	}
	g.pos += source.BlockSize
	g.raw = append(g.raw, b...)
	if g.want > 0 {
		return g.addData(b)
	}
	if g.holes != nil {
		return g.addHoles(b)
	}
	if isZero(b) {
		return g.zero()
	}
	if g.lone {
		return More, fmt.Errorf("goes on after a block of zeros: the archive is damaged: %w", syscall.EBADMSG)
	}
	if !IsHeader(b) {
		return More, fmt.Errorf("no header where one should be: the archive is damaged: %w", syscall.EBADMSG)
	}
	h, err := parseHeader(b)
	g.Item.Path = h.name // for a message; replaced at the end
	if err != nil {
		return More, err
	}
	switch h.typ {
	case typePAX, typePAXGlobal, typeLongName, typeLongLink:
		return g.extend(h)
	case typeVolume:
		return Skip, nil
	}
	m, r, ok, err := g.sparse(h, b)
	if err != nil || r != nil {
		g.holes = r
		return More, err
	}
	if ok && h.typ != typeSparse && h.typ != typeRegular && h.typ != typeRegularOld {
		return More, fmt.Errorf("a sparse file of type %q: %w", h.typ, syscall.EBADMSG)
	}
	return g.end(h, m)
}

// end has all headers of a member.
func (g *Group) end(h header, m *source.Sparse) (Step, error) {
	if err := g.member(h, m); err != nil {
		return Member, g.refuse(h, m, err)
	}
	return Member, nil
}

// addHoles takes a block of the map that follows a sparse member's header.
func (g *Group) addHoles(b []byte) (Step, error) {
	r := g.holes
	done, err := r.add(b)
	if err != nil || !done {
		return More, err
	}
	stored := r.h.size
	if g.o.size != nil {
		stored = *g.o.size
	}
	m, err := source.NewSparse(r.pairs, r.size, stored-r.used)
	if err != nil {
		return More, err
	}
	g.holes = nil
	return g.end(r.h, m)
}

func (g *Group) zero() (Step, error) {
	if g.lone {
		return End, nil
	}
	if len(g.raw) > source.BlockSize {
		return More, fmt.Errorf("the archive ends after an extended header: %w", syscall.EBADMSG)
	}
	g.lone = true
	return More, nil
}

// extend begins an extended header.
func (g *Group) extend(h header) (Step, error) {
	if g.total += h.size; h.size > MaxSpecial || g.total > MaxSpecial {
		return More, fmt.Errorf("extended header of %d bytes, %d is the most: %w", h.size, MaxSpecial, syscall.EBADMSG)
	}
	g.special, g.want, g.data = h.typ, h.size, g.data[:0]
	if g.want == 0 {
		return g.extended()
	}
	return More, nil
}

func (g *Group) addData(b []byte) (Step, error) {
	n := min(g.want, source.BlockSize)
	g.data = append(g.data, b[:n]...)
	if g.want -= n; g.want > 0 {
		return More, nil
	}
	return g.extended()
}

// extended has all data of an extended header.
func (g *Group) extended() (Step, error) {
	switch g.special {
	case typePAX:
		// A second one replaces the first.
		g.o = overrides{longName: g.o.longName, longLink: g.o.longLink}
		return More, paxRecords(g.data, g.o.pax)
	case typePAXGlobal:
		step := More
		if g.o == (overrides{}) {
			step = Skip // of no member: a group of its own
		}
		return step, paxRecords(g.data, g.global)
	case typeLongName:
		g.o.longName = cstring(g.data)
	case typeLongLink:
		g.o.longLink = cstring(g.data)
	}
	return More, nil
}

func (o *overrides) name(name string) string {
	switch {
	case o.sparse != nil && o.sparse.name != "":
		return o.sparse.name
	case o.longName != "":
		return o.longName
	case o.path != "":
		return o.path
	}
	return name
}

func (o *overrides) target(link string) string {
	switch {
	case o.longLink != "":
		return o.longLink
	case o.link != "":
		return o.link
	}
	return link
}

// member has the header that ends the group, and the map of a sparse file.
func (g *Group) member(h header, m *source.Sparse) error {
	name := g.o.name(h.name)
	it := source.Item{
		Mode: uint32(h.mode & 0o7777), UID: uint32(h.uid), GID: uint32(h.gid), Mtime: source.ClampTime(h.mtime, 0), Off: g.pos,
	}
	switch {
	case g.o.mtime != nil:
		it.Mtime = *g.o.mtime
	case g.Mtime != nil:
		it.Mtime = *g.Mtime
	}
	size := h.size
	if g.o.size != nil {
		size = *g.o.size
	}
	if m != nil {
		h.typ, size = typeRegular, m.Size
		it.Sparse, it.Head = m, g.pos-g.start
	}
	if err := setType(&it, h.typ, name, size, g.o.target(h.link)); err != nil {
		return err
	}
	path, err := source.CleanPath(name)
	if err != nil {
		return err
	}
	if path == "" && (!it.Is(source.TypeDir) || it.Hardlink != "") {
		return fmt.Errorf("no name: %w", syscall.EINVAL)
	}
	it.Path = path
	g.Item = it
	// What a message could name is now the item's.
	g.o = overrides{}
	return nil
}

// refuse makes a RefusedError of what is wrong with a member.
func (g *Group) refuse(h header, m *source.Sparse, err error) error {
	size := h.size
	if g.o.size != nil {
		size = *g.o.size
	}
	switch h.typ {
	case typeDir, typeSym, typeHard, typeChar, typeBlock, typeFIFO:
		size = 0
	}
	if m != nil {
		size = m.Stored
	}
	return &source.RefusedError{Name: g.o.name(h.name), Size: size, Err: err}
}

// refused says why members of some types cannot be staged.
var refused = map[byte]string{
	typeChar:  "a device node",
	typeBlock: "a device node",
	typeFIFO:  "a FIFO",
	typeMulti: "a piece of a multi-volume archive",
	typeDump:  "a directory of an incremental archive",
}

func setType(i *source.Item, typ byte, name string, size int64, link string) error {
	switch typ {
	case typeRegular, typeRegularOld, typeContiguous:
		i.Mode, i.Size = i.Mode|source.TypeRegular, size
		if strings.HasSuffix(name, "/") { // how V7 writes a directory
			i.Mode = i.Mode&^source.TypeMask | source.TypeDir
			if size != 0 {
				return fmt.Errorf("a directory with %d bytes of data: %w", size, syscall.EBADMSG)
			}
		}
	case typeDir:
		i.Mode |= source.TypeDir
	case typeSym:
		i.Mode |= source.TypeSymlink
		if link == "" || len(link) > source.MaxTarget || strings.ContainsRune(link, 0) {
			return fmt.Errorf("a symbolic link to %d bytes: %w", len(link), syscall.EINVAL)
		}
		i.Target = link
	case typeHard:
		i.Mode |= source.TypeRegular
		to, err := source.CleanPath(link)
		if err != nil || to == "" {
			return fmt.Errorf("a hard link to %q, which is outside: %w", link, syscall.EINVAL)
		}
		i.Hardlink = to
	default:
		if why, ok := refused[typ]; ok {
			return fmt.Errorf("is %s: %w", why, syscall.EINVAL)
		}
		return fmt.Errorf("is of a type that is not known (%q): %w", typ, syscall.EINVAL)
	}
	return nil
}

// Carry is a copy of Raw.
func (g *Group) Carry() []byte { return slices.Clone(g.raw) }
