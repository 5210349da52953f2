// Package source reads what datasets are made of: tar archives, plain or
// compressed, zip archives, and directory trees. Its one idea is that an archive can be read from any 512-byte boundary
// by anyone who is told, or guesses, what state the reader before was in;
// therefore headers are parsed by a small machine that is given one block at a
// time (Group), and never by a stream that only knows how to begin at zero.
//
// All bytes of a source are read through FS, so that a test, or a report, can
// count them.
//
// Of tar it understands ustar, old V7, star's and GNU's headers with long names
// and long links, and PAX extended headers; regular files, also sparse
// ones, directories, hard and symbolic links. It refuses, naming the member and its
// offset: device nodes and FIFOs, parts of multi-volume or incremental archives,
// absolute paths and paths with "..", names that no filesystem takes.
// A tar may be compressed by gzip, zstd, xz or bzip2, which their first bytes
// tell and not their names. It is unpacked (Unpack) by one reader, and by several
// workers where the format lets them begin in the middle: members of gzip and
// frames of zstd that are not large, and blocks of xz. What the format allows to
// follow an end (more gzip members, zstd frames, xz and bzip2 streams) goes on the
// same tar, and anything else that follows, or that a checksum of the format finds,
// is damage.
//
// Of zip and zip64 it understands what is stored or deflated, with the modes and
// the symbolic links of unix; the central directory is the truth (ReadZip), and
// a local header that says otherwise is damage. It refuses what is encrypted,
// what overlaps, names that are there twice (of which the last stays if that is asked
// for), and archives in several parts.
//
// It ignores owners, extended attributes, access and change times, and comments.
//
// It writes nothing and knows nothing of nodes.
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
