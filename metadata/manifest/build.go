package manifest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/varint"
)

// BuildConfig configures a Build.
type BuildConfig struct {
	Dataset metadata.DatasetID
	Root    metadata.Attr // of directories for which no part has a record
	Scratch *Scratch
	// Leave receives each record that conflicts with others, and the reason, before the manifest is written without it;
	// an error from Leave ends the Build. With a nil Leave such a record ends the Build.
	Leave func(r *Record, why error) error
}

// Build merges the parts of a dataset into its manifest and writes it to w. It creates missing parent directories with
// the owner and the times of cfg.Root, which is also the dataset's root if no part has a record for it (path ""). Hard
// links get the inode of the file they name; the links of files and directories are counted. A directory that occurs
// twice is merged, with the last record's attributes. Any other path that occurs twice is EEXIST, a path through
// something that is not a directory ENOTDIR, a hard link to nothing ENOENT; the error names the path. With cfg.Leave
// such a record is left out instead: of several records with one path the last is kept (by source and offset if both
// have them, else in the order of the parts), except that a hard link never replaces a file, and nothing replaces a
// directory; so a file with paths below it is dropped, and those paths are kept. Build sorts in cfg.Scratch; only hard
// links are in memory.
func Build(cfg BuildConfig, parts []*Reader, w io.Writer) (Summary, error) {
	b := builder{cfg: cfg, all: newSorter(cfg.Scratch)}
	defer b.all.close()
	for i, p := range parts {
		if err := b.read(p); err != nil {
			return Summary{}, fmt.Errorf("part %d: %w", i, err)
		}
	}
	defer b.known.clear(cfg.Scratch)
	if err := b.need(""); err != nil { // even for an empty dataset
		return Summary{}, err
	}
	if err := b.choose(); err != nil {
		return Summary{}, err
	}
	if err := b.resolve(); err != nil {
		return Summary{}, err
	}
	return b.write(w)
}

// builder is the state of a Build. It sorts facts about paths.
type builder struct {
	cfg   BuildConfig
	all   *sorter
	known dirCache
	key   []byte
	val   []byte
	links map[string]string // target path of each hard link
	files map[string]*file  // files that hard links name
	dead  map[string]bool   // hard links that were left out because they name nothing
}

// file is a file with several names.
type file struct {
	rec   Record
	found bool
	names uint32
}

// The kinds of facts, in the order in which the facts of one path are sorted.
const (
	factRecord = iota // the value has flags and body; the last of several records wins
	factDir           // the path must be a directory
	factSubdir        // likewise, and the name that follows is a subdirectory of it
)

// appendFact appends the key of a fact: the path's depth, the path with each slash as a zero byte, a zero byte, the
// fact, and the name of a subdirectory. Keys sort in the order of a manifest: a key that starts with the same path and
// zero byte is deeper, or about the path itself.
func appendFact(b []byte, path string, fact byte, name string) []byte {
	depth := strings.Count(path, "/")
	b = append(b, byte(depth>>8), byte(depth))
	n := len(b)
	b = append(b, path...)
	for at := b[n:]; depth > 0; depth-- {
		i := bytes.IndexByte(at, '/')
		at[i], at = 0, at[i+1:]
	}
	return append(append(b, 0, fact), name...)
}

// splitFact is the inverse of appendFact; the path still has zero bytes for slashes.
func splitFact(k []byte) (path []byte, fact byte) {
	end := 2
	for depth := int(k[0])<<8 | int(k[1]); ; depth-- {
		end += bytes.IndexByte(k[end:], 0)
		if depth == 0 {
			return k[2:end], k[end+1]
		}
		end++
	}
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
		r.Target, r.Attr.Size, r.Attr.Layout = "", 0, metadata.Layout{}
		if err := b.need(r.Path); err != nil {
			return err
		}
		return b.keep(r)
	case syscall.S_IFREG, syscall.S_IFLNK:
	default:
		return fmt.Errorf("%q has mode %o, which no dataset can hold: %w", r.Path, r.Attr.Mode, syscall.EINVAL)
	}
	if i := r.Attr.Ino; !i.Sealed() || i.Dataset() != b.cfg.Dataset || i.Part() == metadata.DirPart {
		return fmt.Errorf("%q has the inode number %v: %w", r.Path, i, syscall.EINVAL)
	}
	return b.keepBelow(r)
}

// keepBelow stores the facts of a record that is not a directory's.
func (b *builder) keepBelow(r *Record) error {
	if r.Path == "" {
		return fmt.Errorf("the root of the dataset: %w", syscall.ENOTDIR)
	}
	dir, _ := split(r.Path)
	if err := b.need(dir); err != nil {
		return err
	}
	return b.keep(r)
}

func (b *builder) keep(r *Record) error {
	b.val = r.appendBody(binary.BigEndian.AppendUint16(b.val[:0], r.flags()))
	return b.fact(r.Path, factRecord, "", b.val)
}

func (b *builder) fact(path string, fact byte, name string, val []byte) error {
	b.key = appendFact(b.key[:0], path, fact, name)
	return b.all.add(b.key, val)
}

// need records that dir and all its parents are needed.
func (b *builder) need(dir string) error {
	for b.known.add(b.cfg.Scratch, dir) {
		if err := b.fact(dir, factDir, "", nil); err != nil || dir == "" {
			return err
		}
		up, name := split(dir)
		if err := b.fact(up, factSubdir, name, nil); err != nil {
			return err
		}
		dir = up
	}
	return nil
}

func (b *builder) addLink(r *Record) error {
	if b.links == nil {
		b.links, b.files = make(map[string]string), make(map[string]*file)
	}
	if _, twice := b.links[r.Path]; twice && b.cfg.Leave == nil {
		return fmt.Errorf("duplicate path %q: %w", r.Path, syscall.EEXIST)
	}
	b.links[r.Path] = r.Hardlink
	return b.keepBelow(r)
}

// dirCache remembers directories whose facts were recorded; the facts of an evicted one are recorded again.
type dirCache struct {
	have  map[string]struct{}
	bytes int
}

// add reports whether dir was not in the cache.
func (c *dirCache) add(s *Scratch, dir string) bool {
	if _, ok := c.have[dir]; ok {
		return false
	}
	if c.have == nil || c.bytes > s.block() {
		c.clear(s)
	}
	c.have[dir] = struct{}{}
	c.bytes += len(dir) + mapEntry
	s.hold(len(dir) + mapEntry)
	return true
}

func (c *dirCache) clear(s *Scratch) {
	s.hold(-c.bytes)
	c.have, c.bytes = make(map[string]struct{}), 0
}

// mapEntry is the approximate overhead of a string in a map, in bytes.
const mapEntry = 48

// named collects all facts about a path.
type named struct {
	path    string
	rec     Record
	some    bool // the path has a record
	dir     bool // the path must be a directory
	subdirs uint32
	leave   bool       // leave out conflicting records, instead of failing
	left    []conflict // the records left out, and why
}

func (n *named) take(fact byte, v []byte) error {
	switch fact {
	case factSubdir:
		n.subdirs++
	case factRecord:
		d := decoder{varint.Decoder{B: v[2:]}}
		r := d.body(n.path, binary.BigEndian.Uint16(v))
		if n.some && !(r.dir() && n.rec.dir()) {
			return n.twice(r)
		}
		n.rec, n.some = r, true
		return nil // an archive may list a directory twice, as tar cf x a a/b does
	}
	n.dir = true
	return nil
}

// each calls fn with all paths, in the order of a manifest.
func (b *builder) each(fn func(n *named) error) error {
	var n *named
	var raw []byte // n's path, as in a key
	err := b.all.each(func(k, v []byte) error {
		path, fact := splitFact(k)
		if n == nil || !bytes.Equal(path, raw) {
			if err := b.whole(n, fn); err != nil {
				return err
			}
			raw = append(raw[:0], path...)
			n = &named{path: strings.ReplaceAll(string(path), "\x00", "/"), leave: b.cfg.Leave != nil}
		}
		return n.take(fact, v)
	})
	if err != nil {
		return err
	}
	return b.whole(n, fn)
}

// whole passes n to fn once all its facts are known. A path without a record gets one.
func (b *builder) whole(n *named, fn func(n *named) error) error {
	if n == nil {
		return nil
	}
	if n.some && n.dir && !n.rec.dir() {
		if err := n.below(); err != nil {
			return err
		}
	}
	if !n.some {
		n.rec = Record{Path: n.path, Attr: b.cfg.Root}
		n.rec.Attr.Mode, n.rec.Attr.Size = syscall.S_IFDIR|0o755, 0
		n.rec.Attr.Layout, n.rec.Attr.Rdev = metadata.Layout{}, 0
		if n.path == "" {
			n.rec.Attr.Mode = syscall.S_IFDIR | b.cfg.Root.Mode&0o7777
		}
	}
	return fn(n)
}

// resolve finds the file of each hard link.
func (b *builder) resolve() error {
	if len(b.links) == 0 {
		return nil
	}
	for path := range b.links {
		to, err := b.follow(path)
		if err != nil && b.cfg.Leave != nil {
			continue // found again and left out below
		}
		if err != nil {
			return err
		}
		if b.files[to] == nil {
			b.files[to] = &file{names: 1}
		}
		b.files[to].names++
	}
	if err := b.each(func(n *named) error {
		if f := b.files[n.path]; f != nil && n.rec.Hardlink == "" {
			f.rec, f.found = n.rec, true
		}
		return nil
	}); err != nil {
		return err
	}
	for path := range b.links {
		err := b.leads(path)
		if err == nil {
			continue
		}
		if b.cfg.Leave == nil {
			return err
		}
		if b.dead == nil {
			b.dead = make(map[string]bool)
		}
		b.dead[path] = true
	}
	return b.bury()
}

// leads returns an error unless the target of a hard link exists and is no directory.
func (b *builder) leads(path string) error {
	to, err := b.follow(path)
	if err != nil {
		return err
	}
	switch f := b.files[to]; {
	case !f.found:
		return fmt.Errorf("%q is a hard link to the missing %q: %w", path, to, syscall.ENOENT)
	case isDir(f.rec.Attr.Mode):
		return fmt.Errorf("%q is a hard link to the directory %q: %w", path, to, syscall.EPERM)
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
	dirs := uint64(0)
	err := b.each(func(n *named) error {
		if n.rec.Hardlink != "" && b.dead[n.path] {
			return nil
		}
		r := b.final(n)
		if isDir(r.Attr.Mode) {
			if dirs > 1<<32-1 {
				return fmt.Errorf("too many directories: %w", syscall.EOVERFLOW)
			}
			r.Attr.Ino = metadata.SealedIno(b.cfg.Dataset, metadata.DirPart, uint32(dirs))
			dirs++
		}
		if n.rec.Hardlink != "" {
			sum.Links++
		} else {
			sum.add(&r)
		}
		return out.Add(r)
	})
	if err == nil {
		err = out.Close()
	}
	sum.Digest = out.Digest()
	return sum, err
}

// final is the record of a path in the manifest.
func (b *builder) final(n *named) Record {
	r := n.rec
	if r.dir() {
		r.Attr.Nlink = 2 + n.subdirs
		return r
	}
	if r.Hardlink != "" {
		to, _ := b.follow(r.Path) // resolve has verified that the chain ends
		f := b.files[to]
		r = f.rec
		r.Path, r.Attr.Nlink = n.path, f.names
		return r
	}
	if b.cfg.Leave != nil && (fileType(r.Attr.Mode) != syscall.S_IFREG || r.Attr.Size == 0) {
		r.From = Origin{} // From gave only the position of the link in the source
	}
	r.Attr.Nlink = 1
	if f := b.files[r.Path]; f != nil {
		r.Attr.Nlink = f.names
	}
	return r
}
