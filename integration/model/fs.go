package model

import (
	"maps"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	maxName  = 255
	maxLinks = 40 // symbolic links in one walk
)

// FS is the model. It is not safe for concurrent use.
type FS struct {
	Umask   uint32
	root    *inode
	last    uint64 // last assigned inode number
	handles map[int]*handle
}

// inode is any object with attributes.
type inode struct {
	id           uint64
	mode         uint32 // including the type
	nlink        int
	data         []byte            // of a file
	target       string            // of a symbolic link
	entries      map[string]*inode // of a directory
	parent       *inode            // of a directory; nil for the root
	xattrs       map[string][]byte
	atime, mtime int64 // seconds, as set by utimens; 0 is unknown
}

// handle is an open file.
type handle struct {
	*inode
	flags int
	pos   int64
	mount int  // the mount that opened it
	wrote bool // since the last publishing fsync
}

// NewFS returns an empty directory.
func NewFS() *FS {
	f := &FS{handles: make(map[int]*handle)}
	f.root = f.newInode(unix.S_IFDIR | 0o755)
	return f
}

func (f *FS) newInode(mode uint32) *inode {
	f.last++
	i := &inode{id: f.last, mode: mode, nlink: 1, xattrs: make(map[string][]byte)}
	if i.dir() {
		i.nlink, i.entries = 2, make(map[string]*inode)
	}
	return i
}

func (i *inode) kind() uint32 { return i.mode & unix.S_IFMT }
func (i *inode) dir() bool    { return i.kind() == unix.S_IFDIR }
func (i *inode) file() bool   { return i.kind() == unix.S_IFREG }
func (i *inode) link() bool   { return i.kind() == unix.S_IFLNK }

// size returns -1 for types without a meaningful size.
func (i *inode) size() int64 {
	switch i.kind() {
	case unix.S_IFREG:
		return int64(len(i.data))
	case unix.S_IFLNK:
		return int64(len(i.target))
	case unix.S_IFDIR:
		return -1
	}
	return 0
}

func (i *inode) attr() *Attr {
	return &Attr{Ino: i.id, Mode: i.mode, Nlink: uint64(i.nlink), Size: i.size(), Atime: i.atime, Mtime: i.mtime}
}

// place is the location of a name, existing or not.
type place struct {
	in     *inode // the directory
	name   string
	*inode // nil if there is no such name
}

// walk finds the place of a path. If follow is set and the last component is a symbolic link, it returns the place of
// the link's target.
func (f *FS) walk(path string, follow bool) (place, syscall.Errno) {
	links := 0
	return f.walkFrom(f.root, path, follow, &links)
}

func (f *FS) walkFrom(dir *inode, path string, follow bool, links *int) (place, syscall.Errno) {
	p := place{in: dir, name: ".", inode: dir}
	rest := path
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		if name == "" || name == "." {
			continue
		}
		if p.inode == nil {
			return p, syscall.ENOENT
		}
		if !p.inode.dir() {
			return p, syscall.ENOTDIR
		}
		if len(name) > maxName {
			return p, syscall.ENAMETOOLONG
		}
		p = place{in: p.inode, name: name, inode: p.entries[name]}
		if p.inode == nil || !p.link() || rest == "" && !follow {
			continue
		}
		if *links++; *links > maxLinks {
			return p, syscall.ELOOP
		}
		var no syscall.Errno
		if p, no = f.walkFrom(p.in, p.target, true, links); no != 0 {
			return p, no
		}
	}
	return p, 0
}

// find walks to an existing inode.
func (f *FS) find(path string, follow bool) (*inode, syscall.Errno) {
	p, no := f.walk(path, follow)
	if no == 0 && p.inode == nil {
		no = syscall.ENOENT
	}
	return p.inode, no
}

// enter adds the name for i.
func (p place) enter(i *inode) {
	p.in.entries[p.name] = i
	p.in.changed()
	if i.dir() {
		i.parent = p.in
		p.in.nlink++
	}
}

// leave removes the name, and nothing else.
func (p place) leave() {
	delete(p.in.entries, p.name)
	p.in.changed()
	if p.inode.dir() {
		p.in.nlink--
	}
}

// drop updates an inode that lost a name.
func (i *inode) drop() {
	i.nlink--
	if i.dir() {
		i.nlink = 0
	}
}

// changed forgets the modification time, which is now some unknown time.
func (i *inode) changed() { i.mtime = 0 }

// below reports whether i is dir or in it.
func (i *inode) below(dir *inode) bool {
	for ; i != nil; i = i.parent {
		if i == dir {
			return true
		}
	}
	return false
}

// Clone returns a copy of the file system without the open files.
func (f *FS) Clone() *FS {
	c := &FS{Umask: f.Umask, last: f.last, handles: make(map[int]*handle)}
	c.root = f.root.clone(nil, make(map[*inode]*inode))
	return c
}

func (i *inode) clone(parent *inode, done map[*inode]*inode) *inode {
	if c := done[i]; c != nil {
		return c
	}
	c := *i
	done[i] = &c
	c.parent = parent
	c.data, c.xattrs, c.entries = slices.Clone(i.data), maps.Clone(i.xattrs), maps.Clone(i.entries)
	for name, e := range i.entries {
		c.entries[name] = e.clone(&c, done)
	}
	return &c
}

// paths returns all paths, sorted.
func (f *FS) paths() []string {
	var all []string
	var visit func(dir *inode, prefix string)
	visit = func(dir *inode, prefix string) {
		for name, e := range dir.entries {
			all = append(all, prefix+name)
			if e.dir() {
				visit(e, prefix+name+"/")
			}
		}
	}
	visit(f.root, "")
	slices.Sort(all)
	return all
}
