package source

import (
	"io"

	"github.com/bivouacfs/bivouac/metadata"
)

// Kind is a kind of source.
type Kind string

// The kinds of source.
const (
	Tar      Kind = "tar"
	TarGzip  Kind = "tar.gz"
	TarZstd  Kind = "tar.zst"
	TarXz    Kind = "tar.xz"
	TarBzip2 Kind = "tar.bz2"
	Zip      Kind = "zip"
	Dir      Kind = "dir"
	Many     Kind = "many" // several archives, each of any kind except Many and Dir
)

// Packed reports whether a source is a compressed tar.
func (k Kind) Packed() bool {
	return k == TarGzip || k == TarZstd || k == TarXz || k == TarBzip2
}

// File types as in stat(2).
const (
	TypeMask    = 0o170000
	TypeSocket  = 0o140000
	TypeSymlink = 0o120000
	TypeRegular = 0o100000
	TypeBlock   = 0o060000
	TypeDir     = 0o040000
	TypeChar    = 0o020000
	TypeFIFO    = 0o010000
)

// Info holds the attributes of a file, as in stat(2).
type Info struct {
	Mode  uint32 // type and permissions
	UID   uint32
	GID   uint32
	Nlink uint64
	Size  int64 // bytes
	Mtime metadata.Time
	Dev   uint64
	Ino   uint64
}

// Is reports whether the file has the given type.
func (i Info) Is(typ uint32) bool { return i.Mode&TypeMask == typ }

// Same reports whether the file is unchanged, judging by size and modification time.
func (i Info) Same(now Info) bool { return i.Size == now.Size && i.Mtime == now.Mtime }

// File is an open regular file.
type File interface {
	io.ReaderAt
	Stat() (Info, error)
	Close() error
}

// FS is a filesystem that contains sources. Errors are errnos.
type FS interface {
	// Open opens a regular file for reading. It does not follow a symbolic link in the last component (ELOOP) and
	// does not block on a FIFO.
	Open(path string) (File, error)
	// Lstat returns the attributes of path without following a symbolic link.
	Lstat(path string) (Info, error)
	// Readlink returns the target of a symbolic link.
	Readlink(path string) (string, error)
	// ReadDir returns the names in a directory, in any order.
	ReadDir(path string) ([]string, error)
}
