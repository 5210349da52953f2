package manifest

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Build merges the parts of a dataset into its manifest and writes that to w.
// Parent directories that no part has are made with the owner and the times of
// root, which is also the dataset's root if no part has a record for it (path
// ""). Hard links get the inode of the file they name; the links of files and
// directories are counted. A directory that stands twice is one, as the last record says. Any
// other path that stands twice is EEXIST, one through
// something that is no directory ENOTDIR, a hard link to nothing ENOENT; the
// error names the path.
func Build(ds metadata.DatasetID, parts []*Reader, root metadata.Attr, w io.Writer) (Summary, error) {
	b := builder{ds: ds, root: root, dirs: map[string]*dirInfo{"": {}}}
	for i, p := range parts {
		if err := b.read(p); err != nil {
			return Summary{}, fmt.Errorf("part %d: %w", i, err)
		}
	}
	b.makeParents()
	if err := b.resolve(); err != nil {
		return Summary{}, err
	}
	slices.SortFunc(b.items, compareItems)
	return b.write(w)
}

// builder is one Build under way.
type builder struct {
	ds    metadata.DatasetID
	root  metadata.Attr // of directories that no part has
	items []item        // every record but the root's
	top   *Record       // the root's record, if a part has one
	dirs  map[string]*dirInfo
	links map[string]string // path of each hard link, to the path it names
	files map[string]*file  // what hard links name
}

// item is a record in little space: the path, and behind it the encoded body.
type item struct {
	raw   string
	path  uint16 // length of the path
	depth uint16
	flags byte // of the record, and made
}

const made byte = 0x80 // the item is a directory that no part has

type dirInfo struct {
	known   bool // a part has a record of it
	at      int  // its place among the items
	subdirs uint32
}

// file is a file with several names.
type file struct {
	rec   Record
	found bool
	names uint32
}

func newItem(r *Record, more byte) item {
	b := make([]byte, 0, len(r.Path)+48+len(r.Target)+len(r.Hardlink))
	b = r.appendBody(append(b, r.Path...))
	return item{
		raw: string(b), path: uint16(len(r.Path)), depth: uint16(strings.Count(r.Path, "/")),
		flags: r.flags() | more,
	}
}

func (it *item) name() string { return it.raw[:it.path] }

func (it *item) record() Record {
	d := decoder{b: []byte(it.raw[it.path:])}
	return d.body(it.name(), it.flags&^made)
}

// compareItems is the order of a manifest.
func compareItems(a, b item) int {
	if a.depth != b.depth {
		return int(a.depth) - int(b.depth)
	}
	return comparePaths(a.name(), b.name())
}

// comparePaths compares name by name: as bytes, with the slash before all others.
func comparePaths(a, b string) int {
	n := min(len(a), len(b))
	i := 0
	for i < n && a[i] == b[i] {
		i++
	}
	if i == n {
		return len(a) - len(b)
	}
	return int(rank(a[i])) - int(rank(b[i]))
}

func rank(c byte) byte {
	if c == '/' {
		return 0
	}
	return c
}

func (b *builder) read(p *Reader) error {
	for {
		r, err := p.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := b.add(&r); err != nil {
			return err
		}
	}
}

func (b *builder) add(r *Record) error {
	if r.Hardlink != "" {
		return b.addLink(r)
	}
	switch fileType(r.Attr.Mode) {
	case syscall.S_IFDIR:
		return b.addDir(r)
	case syscall.S_IFREG, syscall.S_IFLNK:
	default:
		return fmt.Errorf("%q has mode %o, which no dataset can hold: %w", r.Path, r.Attr.Mode, syscall.EINVAL)
	}
	if i := r.Attr.Ino; !i.Sealed() || i.Dataset() != b.ds || i.Part() == metadata.DirPart {
		return fmt.Errorf("%q has the inode number %v: %w", r.Path, i, syscall.EINVAL)
	}
	if r.Path == "" {
		return fmt.Errorf("the root of the dataset: %w", syscall.ENOTDIR)
	}
	b.keep(r)
	return nil
}

func (b *builder) keep(r *Record) {
	b.items = append(b.items, newItem(r, 0))
	dir, _ := split(r.Path)
	b.need(dir)
}

// need notes dir and all above it.
func (b *builder) need(dir string) {
	for b.dirs[dir] == nil {
		b.dirs[dir] = &dirInfo{}
		dir, _ = split(dir)
	}
}

func (b *builder) addDir(r *Record) error {
	b.need(r.Path)
	d := b.dirs[r.Path]
	r.Target, r.Attr.Size, r.Attr.Layout = "", 0, metadata.Layout{}
	switch {
	case r.Path == "":
		b.top = r
	case d.known: // an archive may name a directory again, as tar cf x a a/b does
		b.items[d.at] = newItem(r, 0)
	default:
		d.at = len(b.items)
		b.keep(r)
	}
	d.known = true
	return nil
}

func (b *builder) addLink(r *Record) error {
	if b.links == nil {
		b.links, b.files = make(map[string]string), make(map[string]*file)
	}
	if r.Path == "" {
		return fmt.Errorf("the root of the dataset: %w", syscall.ENOTDIR)
	}
	if _, twice := b.links[r.Path]; twice {
		return fmt.Errorf("%q is there twice: %w", r.Path, syscall.EEXIST)
	}
	b.links[r.Path] = r.Hardlink
	b.keep(r)
	return nil
}

func (b *builder) makeParents() {
	for path, d := range b.dirs {
		if path == "" {
			continue
		}
		if !d.known {
			b.items = append(b.items, newItem(&Record{Path: path, Attr: b.newDir()}, made))
		}
		dir, _ := split(path)
		b.dirs[dir].subdirs++
	}
}

func (b *builder) newDir() metadata.Attr {
	a := b.root
	a.Mode, a.Size, a.Layout, a.Rdev = syscall.S_IFDIR|0o755, 0, metadata.Layout{}, 0
	return a
}

// resolve finds the file of each hard link.
func (b *builder) resolve() error {
	if len(b.links) == 0 {
		return nil
	}
	for path := range b.links {
		to, err := b.follow(path)
		if err != nil {
			return err
		}
		if b.files[to] == nil {
			b.files[to] = &file{names: 1}
		}
		b.files[to].names++
	}
	for i := range b.items {
		it := &b.items[i]
		if f := b.files[it.name()]; f != nil && it.flags&recordHardlink == 0 {
			f.rec, f.found = it.record(), true
		}
	}
	for path, to := range b.links {
		to, err := b.follow(to)
		if err != nil {
			return err
		}
		switch f := b.files[to]; {
		case !f.found:
			return fmt.Errorf("%q is a hard link to %q, which is not there: %w", path, to, syscall.ENOENT)
		case isDir(f.rec.Attr.Mode):
			return fmt.Errorf("%q is a hard link to the directory %q: %w", path, to, syscall.EPERM)
		}
	}
	return nil
}

// follow returns the end of a chain of hard links.
func (b *builder) follow(path string) (string, error) {
	at := path
	for range len(b.links) + 1 {
		to, link := b.links[at]
		if !link {
			return at, nil
		}
		at = to
	}
	return "", fmt.Errorf("%q is a hard link in a circle: %w", path, syscall.ELOOP)
}

func (b *builder) write(w io.Writer) (Summary, error) {
	var sum Summary
	out := NewWriter(w)
	seq := uint32(0)
	emit := func(r *Record, links int64) error {
		if isDir(r.Attr.Mode) {
			r.Attr.Ino = metadata.SealedIno(b.ds, metadata.DirPart, seq)
			r.Attr.Nlink = 2 + b.dirs[r.Path].subdirs
			if seq++; seq == 0 {
				return fmt.Errorf("too many directories: %w", syscall.EOVERFLOW)
			}
		}
		if links == 0 {
			sum.add(r)
		}
		sum.Links += links
		return out.Add(*r)
	}
	top := Record{Attr: b.root}
	if b.top != nil {
		top = *b.top
	}
	top.Attr.Mode = syscall.S_IFDIR | top.Attr.Mode&0o7777
	if err := emit(&top, 0); err != nil {
		return sum, err
	}
	for i := range b.items {
		if err := b.twice(i); err != nil {
			return sum, err
		}
		r := b.final(&b.items[i])
		links := int64(0)
		if b.items[i].flags&recordHardlink != 0 {
			links = 1
		}
		if err := emit(&r, links); err != nil {
			return sum, err
		}
	}
	err := out.Close()
	sum.Digest = out.Digest()
	return sum, err
}

// twice refuses item i if it has the path of the one before it.
func (b *builder) twice(i int) error {
	if i == 0 || b.items[i].name() != b.items[i-1].name() {
		return nil
	}
	path := b.items[i].name()
	if (b.items[i].flags|b.items[i-1].flags)&made != 0 {
		return fmt.Errorf("%q has paths below it: %w", path, syscall.ENOTDIR)
	}
	return fmt.Errorf("%q is there twice: %w", path, syscall.EEXIST)
}

// final is the record of an item as it stands in the manifest.
func (b *builder) final(it *item) Record {
	r := it.record()
	if r.Hardlink != "" {
		to, _ := b.follow(r.Path) // resolve has seen that it ends
		f := b.files[to]
		r = f.rec
		r.Path, r.Attr.Nlink = it.name(), f.names
		return r
	}
	if isDir(r.Attr.Mode) {
		return r
	}
	r.Attr.Nlink = 1
	if f := b.files[r.Path]; f != nil {
		r.Attr.Nlink = f.names
	}
	return r
}
