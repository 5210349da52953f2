package txn

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Check compares the records of all homes of a job, while no operation is in progress, and returns the inconsistencies:
// an entry without its inode or of another type, a link count that differs from the number of names, an inode without a
// name that is no orphan, a directory that has several entries or another parent, or that cannot be reached from the
// root, and unfinished transactions.
func Check(homes []metadata.Inventory) []string {
	k := checker{
		inodes: make(map[metadata.Ino]metadata.InventoryInode), orphans: make(map[metadata.Ino]bool),
		names: make(map[metadata.Ino][]name), subs: make(map[metadata.Ino]int),
	}
	for _, h := range homes {
		k.merge(h)
	}
	for ino, ns := range k.names {
		k.entries(ino, ns)
	}
	for ino, known := range k.inodes {
		if isDir(known.Attr.Mode) {
			k.directory(ino, known)
		} else {
			k.file(ino, known.Attr)
		}
	}
	slices.Sort(k.problems)
	return k.problems
}

// name is an entry of an inode.
type name struct {
	dir  metadata.Ino
	name string
	mode uint32
}

type checker struct {
	inodes   map[metadata.Ino]metadata.InventoryInode
	orphans  map[metadata.Ino]bool
	names    map[metadata.Ino][]name // by inode
	subs     map[metadata.Ino]int    // directories in a directory
	problems []string
}

func (k *checker) report(format string, args ...any) {
	k.problems = append(k.problems, fmt.Sprintf(format, args...))
}

// merge adds the inventory of one home.
func (k *checker) merge(h metadata.Inventory) {
	for ino, known := range h.Inodes {
		if ino.Home() != h.Self {
			k.report("inode %v is kept by home %d", ino, h.Self)
		}
		k.inodes[ino] = known
	}
	for ino := range h.Orphans {
		k.orphans[ino] = true
		if _, ok := h.Inodes[ino]; !ok {
			k.report("orphan %v has no inode", ino)
		}
	}
	for dir, es := range h.Entries {
		for _, e := range es {
			k.names[e.Ino] = append(k.names[e.Ino], name{dir, e.Name, e.Mode})
			if isDir(e.Mode) {
				k.subs[dir]++
			}
		}
	}
	for _, tx := range h.Open {
		k.report("home %d has transaction %v without an end", h.Self, tx)
	}
}

// entries checks all entries of ino.
func (k *checker) entries(ino metadata.Ino, ns []name) {
	known, ok := k.inodes[ino]
	for _, n := range ns {
		if _, there := k.inodes[n.dir]; !there {
			k.report("entry %q is in the missing directory %v", n.name, n.dir)
		}
		if !ok {
			k.report("entry %q of %v names the missing inode %v", n.name, n.dir, ino)
		} else if n.mode&syscall.S_IFMT != known.Attr.Mode&syscall.S_IFMT {
			k.report("entry %q of %v says mode %o, inode %v has %o", n.name, n.dir, n.mode, ino, known.Attr.Mode)
		}
	}
}

// file checks an inode other than a directory.
func (k *checker) file(ino metadata.Ino, a metadata.Attr) {
	if n := len(k.names[ino]); int(a.Nlink) != n {
		k.report("inode %v has %d links and %d names: %v", ino, a.Nlink, n, k.names[ino])
	}
	if (a.Nlink == 0) != k.orphans[ino] {
		k.report("inode %v has %d links, an orphan: %v", ino, a.Nlink, k.orphans[ino])
	}
}

// directory checks a directory: its entry, its links, and that its path leads up to the root.
func (k *checker) directory(ino metadata.Ino, known metadata.InventoryInode) {
	ns := k.names[ino]
	if ino == metadata.RootIno {
		if len(ns) != 0 {
			k.report("the root is named: %v", ns)
		}
	} else if len(ns) != 1 {
		k.report("directory %v has %d names: %v", ino, len(ns), ns)
	} else if ns[0].dir != known.Parent || ns[0].name != known.Name {
		k.report("directory %v is %q in %v, and believes to be %q in %v", ino, ns[0].name, ns[0].dir, known.Name, known.Parent)
	}
	if int(known.Attr.Nlink) != 2+k.subs[ino] {
		k.report("directory %v has %d links and %d directories", ino, known.Attr.Nlink, k.subs[ino])
	}
	if !k.rooted(ino) {
		k.report("directory %v is not below the root", ino)
	}
}

// rooted reports whether the path up from the directory ino ends at the root.
func (k *checker) rooted(ino metadata.Ino) bool {
	for range k.inodes {
		if ino == metadata.RootIno {
			return true
		}
		ino = k.inodes[ino].Parent
	}
	return ino == metadata.RootIno
}
