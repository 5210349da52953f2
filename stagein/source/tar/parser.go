package tar

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// MaxExtended is the limit of the extended headers of one member, in bytes; it bounds the memory of a Parser.
const MaxExtended = 1 << 20

// Step is the result of parsing a block.
type Step uint8

// The steps.
const (
	More   Step = iota // the headers continue in the next block
	Member             // Item is complete; its data begins at the next block
	Skip               // a header without effect and without data
	End                // end of the archive
)

// Parser parses the headers of one member: PAX and GNU extensions, then the member's own. It is fed one block after
// another and keeps them all, so that another reader can take over incomplete headers. The zero value is ready for
// headers at offset 0.
type Parser struct {
	// Item is the member, after step Member.
	Item source.Item
	// Mtime is the time that a PAX global header sets for all members.
	Mtime *metadata.Time

	start, pos int64
	raw        []byte
	o          overrides
	extType    byte          // type of the extended header whose data is being read; 0: none
	want       int64         // bytes of it still missing
	data       []byte        // bytes of it read so far
	total      int64         // bytes of data of all extended headers
	zeroBlock  bool          // the last block was all zeros
	sparseMap  *sparseReader // reads the map of a sparse member; nil otherwise
}

// Reset starts at the headers at offset pos. A global header stays in force.
func (g *Parser) Reset(pos int64) {
	*g = Parser{Mtime: g.Mtime, start: pos, pos: pos, raw: g.raw[:0], data: g.data[:0]}
}

// Start returns the offset of the first block.
func (g *Parser) Start() int64 { return g.start }

// Pos returns the offset of the block that Add needs next.
func (g *Parser) Pos() int64 { return g.pos }

// Fresh reports whether no block was added since Reset.
func (g *Parser) Fresh() bool { return g.pos == g.start }

// Lone reports whether the last block was a first block of zeros, possibly the only one left of an archive's end.
func (g *Parser) Lone() bool { return g.zeroBlock }

// Data returns the number of bytes of the member's data in the archive; 0 unless it is a regular file.
func (g *Parser) Data() int64 { return g.Item.Stored() }

// Add parses the next block. An error names the member and its offset; after a RefusedError the parser is at the
// member's data.
func (g *Parser) Add(b []byte) (Step, error) {
	step, err := g.add(b)
	if err != nil {
		return step, g.wrap(err)
	}
	return step, nil
}

func (g *Parser) wrap(err error) error {
	name := g.o.name(g.Item.Path)
	if name == "" {
		return fmt.Errorf("at offset %d: %w", g.start, err)
	}
	return fmt.Errorf("member %q at offset %d: %w", name, g.start, err)
}

func (g *Parser) add(b []byte) (Step, error) {
	if len(b) != source.BlockSize {
		return More, fmt.Errorf("block of %d bytes: %w", len(b), syscall.EBADMSG)
	}
	g.pos += source.BlockSize
	g.raw = append(g.raw, b...)
	if g.want > 0 {
		return g.addData(b)
	}
	if g.sparseMap != nil {
		return g.addMap(b)
	}
	if isZero(b) {
		return g.zero()
	}
	if g.zeroBlock {
		return More, fmt.Errorf("continues after a block of zeros: the archive is damaged: copy it again: %w", syscall.EBADMSG)
	}
	if !IsHeader(b) {
		return More, fmt.Errorf("no header where one should be: the archive is damaged: copy it again: %w", syscall.EBADMSG)
	}
	h, err := parseHeader(b)
	g.Item.Path = h.name // for error messages; replaced in member
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
		g.sparseMap = r
		return More, err
	}
	if ok && h.typ != typeSparse && h.typ != typeRegular && h.typ != typeRegularOld {
		return More, fmt.Errorf("a sparse file of type %q: %w", h.typ, syscall.EBADMSG)
	}
	return g.end(h, m)
}

// end completes the member whose header is h.
func (g *Parser) end(h header, m *source.Sparse) (Step, error) {
	if err := g.member(h, m); err != nil {
		return Member, g.refuse(h, m, err)
	}
	return Member, nil
}

// addMap parses a block of the map that follows a sparse member's header.
func (g *Parser) addMap(b []byte) (Step, error) {
	r := g.sparseMap
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
	g.sparseMap = nil
	return g.end(r.h, m)
}

func (g *Parser) zero() (Step, error) {
	if g.zeroBlock {
		return End, nil
	}
	if len(g.raw) > source.BlockSize {
		return More, fmt.Errorf("the archive ends after an extended header: %w", syscall.EBADMSG)
	}
	g.zeroBlock = true
	return More, nil
}

// extend starts an extended header.
func (g *Parser) extend(h header) (Step, error) {
	if g.total += h.size; h.size > MaxExtended || g.total > MaxExtended {
		return More, fmt.Errorf("extended header of %d bytes, %d is the most: %w", h.size, MaxExtended, syscall.EBADMSG)
	}
	g.extType, g.want, g.data = h.typ, h.size, g.data[:0]
	if g.want == 0 {
		return g.extended()
	}
	return More, nil
}

func (g *Parser) addData(b []byte) (Step, error) {
	n := min(g.want, source.BlockSize)
	g.data = append(g.data, b[:n]...)
	if g.want -= n; g.want > 0 {
		return More, nil
	}
	return g.extended()
}

// extended completes an extended header.
func (g *Parser) extended() (Step, error) {
	switch g.extType {
	case typePAX:
		// A later header replaces an earlier one.
		g.o = overrides{longName: g.o.longName, longLink: g.o.longLink}
		return More, paxRecords(g.data, g.o.pax)
	case typePAXGlobal:
		step := More
		if g.o == (overrides{}) {
			step = Skip // applies to no member
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

// member builds the item from the header that ends the sequence and the map of a sparse file.
func (g *Parser) member(h header, m *source.Sparse) error {
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
	// From here on, messages name the item.
	g.o = overrides{}
	return nil
}

// refuse returns a RefusedError for a member.
func (g *Parser) refuse(h header, m *source.Sparse, err error) error {
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

// refused explains member types that cannot be staged.
var refused = map[byte]string{
	typeChar:  "a device node",
	typeBlock: "a device node",
	typeFIFO:  "a FIFO",
	typeMulti: "a part of a multi-volume archive",
	typeDump:  "a directory of an incremental archive",
}

func setType(i *source.Item, typ byte, name string, size int64, link string) error {
	switch typ {
	case typeRegular, typeRegularOld, typeContiguous:
		i.Mode, i.Size = i.Mode|source.TypeRegular, size
		if strings.HasSuffix(name, "/") { // a directory in V7 archives
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
			return fmt.Errorf("a symbolic link with a target of %d bytes: %w", len(link), syscall.EINVAL)
		}
		i.Target = link
	case typeHard:
		i.Mode |= source.TypeRegular
		to, err := source.CleanPath(link)
		if err != nil || to == "" {
			return fmt.Errorf("a hard link to %q, which is outside the archive: %w", link, syscall.EINVAL)
		}
		i.Hardlink = to
	default:
		if why, ok := refused[typ]; ok {
			return fmt.Errorf("is %s: %w", why, syscall.EINVAL)
		}
		return fmt.Errorf("is of an unknown type (%q): %w", typ, syscall.EINVAL)
	}
	return nil
}

// Carry returns a copy of Raw, for another reader.
func (g *Parser) Carry() []byte { return slices.Clone(g.raw) }
