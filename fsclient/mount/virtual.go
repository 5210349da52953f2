package mount

import (
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// The virtual inodes of the mount; all are below metadata.FirstIno.
const (
	inoRoot   metadata.Ino = 1 // by the protocol
	inoData   metadata.Ino = 2
	inoHidden metadata.Ino = 3
	inoStatus metadata.Ino = 4
	inoStats  metadata.Ino = 5
	inoMap    metadata.Ino = 6
	inoSocket metadata.Ino = 7
)

const (
	nameData    = "data"
	nameScratch = "scratch"
	nameHidden  = ".bivouac"
)

var virtualFiles = []metadata.Entry{
	{Name: "control", Ino: inoSocket, Mode: syscall.S_IFREG},
	{Name: "map", Ino: inoMap, Mode: syscall.S_IFREG},
	{Name: "stats", Ino: inoStats, Mode: syscall.S_IFREG},
	{Name: "status", Ino: inoStatus, Mode: syscall.S_IFREG},
}

var rootEntries = []metadata.Entry{
	{Name: nameHidden, Ino: inoHidden, Mode: syscall.S_IFDIR},
	{Name: nameData, Ino: inoData, Mode: syscall.S_IFDIR},
	{Name: nameScratch, Ino: metadata.RootIno, Mode: syscall.S_IFDIR},
}

// virtual reports whether ino is one of the mount itself.
func virtual(ino metadata.Ino) bool { return ino >= inoRoot && ino <= inoSocket }

// writable is EROFS for an inode that cannot be changed.
func writable(dirs ...metadata.Ino) error {
	for _, d := range dirs {
		if virtual(d) || d.Sealed() {
			return syscall.EROFS
		}
	}
	return nil
}

func (s *fsys) virtualAttr(ino metadata.Ino) metadata.Attr {
	a := metadata.Attr{
		Ino: ino, Mode: syscall.S_IFREG | 0o444, Nlink: 1, UID: s.cfg.UID, GID: s.cfg.GID,
		Atime: s.born, Mtime: s.born, Ctime: s.born,
	}
	switch ino {
	case inoRoot:
		a.Mode, a.Nlink = syscall.S_IFDIR|0o700, 2+uint32(len(rootEntries))
	case inoData:
		ds := s.client.Datasets()
		a.Mode, a.Nlink = syscall.S_IFDIR|0o555, 2+uint32(len(ds))
		for _, d := range ds {
			a.Mtime = max(a.Mtime, d.Started, d.Sealed)
		}
		a.Ctime = a.Mtime
	case inoHidden:
		a.Mode, a.Nlink = syscall.S_IFDIR|0o555, 2
	}
	return a
}

// virtualEntries is the entries of a virtual directory, sorted by name.
func (s *fsys) virtualEntries(dir metadata.Ino) ([]metadata.Entry, error) {
	switch dir {
	case inoRoot:
		return rootEntries, nil
	case inoHidden:
		return virtualFiles, nil
	case inoData:
		var es []metadata.Entry
		for _, d := range s.client.Datasets() {
			es = append(es, metadata.Entry{Name: d.Name, Ino: rootOf(d), Mode: syscall.S_IFDIR})
		}
		return es, nil
	}
	return nil, fmt.Errorf("inode %v: %w", dir, syscall.ENOTDIR)
}

// rootOf is the root directory of a dataset.
func rootOf(d cluster.Dataset) metadata.Ino {
	return metadata.SealedIno(d.ID, metadata.DirPart, 0)
}

// virtualContent is the content of a virtual file now.
func (s *fsys) virtualContent(ino metadata.Ino) ([]byte, error) {
	for _, e := range virtualFiles {
		if e.Ino == ino {
			return s.cfg.Virtual(e.Name)
		}
	}
	return nil, fmt.Errorf("inode %v: %w", ino, syscall.EISDIR)
}
