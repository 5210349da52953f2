package source

import (
	"io"

	"github.com/bivouacfs/bivouac/metadata"
)

// Kind is what sort of thing a source is.
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
	Many     Kind = "many" // several archives, each of any kind but these two
)

// Packed reports whether a source is a compressed tar, which can only be read
// from its beginning on.
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

// Info is what a file is, as in stat(2).
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

// Same reports whether a file that was i is still what it was, as far as its
// size and its time of modification tell.
func (i Info) Same(now Info) bool { return i.Size == now.Size && i.Mtime == now.Mtime }

// File is an open regular file.
type File interface {
	io.ReaderAt
	Stat() (Info, error)
	Close() error
}

// FS is a filesystem that sources are in. Errors are errnos.
type FS interface {
	// Open opens a regular file for reading. It never follows a symbolic
	// link in the last component (ELOOP) and never waits for a FIFO.
	Open(path string) (File, error)
	// Lstat describes what path names; a symbolic link is not followed.
	Lstat(path string) (Info, error)
	// Readlink returns the target of a symbolic link.
	Readlink(path string) (string, error)
	// ReadDir returns the names in a directory, in any order.
	ReadDir(path string) ([]string, error)
}
