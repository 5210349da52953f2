package walk

import (
	"bytes"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// Found is the result of Detect.
type Found struct {
	Kind source.Kind
	Path string // symbolic links resolved
	Info source.Info
	Head []byte // the first block of an archive, so that it is not read twice
}

// magics are the first bytes of archives other than plain tars.
var magics = []struct {
	magic string
	kind  source.Kind // "": not supported
	is    string      // for the message
}{
	{"\x1f\x8b", source.TarGzip, ""}, {"\x28\xb5\x2f\xfd", source.TarZstd, ""}, {"\xfd7zXZ\x00", source.TarXz, ""}, {"BZh", source.TarBzip2, ""},
	{"PK\x03\x04", source.Zip, ""}, {"PK\x05\x06", source.Zip, ""}, {"PK\x07\x08", "", "a part of a multi-disk zip archive"},
}

// Detect determines the kind of the source at path, and refuses a path that cannot be a source.
func Detect(fs source.FS, path string) (Found, error) {
	path, info, err := source.Resolve(fs, path)
	if err != nil {
		return Found{}, err
	}
	f := Found{Path: path, Info: info}
	switch {
	case info.Is(source.TypeDir):
		f.Kind = source.Dir
		if _, err := fs.ReadDir(path); err != nil {
			return f, fmt.Errorf("%s: %w", path, err)
		}
		return f, nil
	case info.Is(source.TypeRegular):
		f.Kind = source.Tar
		return f, f.readHead(fs)
	}
	return f, fmt.Errorf("%s: is %s, not an archive or a directory: %w", path, source.TypeName(info.Mode), syscall.EINVAL)
}

func (f *Found) readHead(fs source.FS) error {
	if f.Info.Size == 0 {
		return fmt.Errorf("%s: is empty: %w", f.Path, syscall.EINVAL)
	}
	file, err := fs.Open(f.Path)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	f.Head = make([]byte, min(source.BlockSize, f.Info.Size))
	err = source.ReadFull(file, f.Path, f.Head, 0)
	if e := file.Close(); err == nil && e != nil {
		err = fmt.Errorf("%s: %w", f.Path, e)
	}
	if err != nil {
		return err
	}
	return f.checkHead()
}

func (f *Found) checkHead() error {
	for _, m := range magics {
		if !bytes.HasPrefix(f.Head, []byte(m.magic)) && !(m.kind == source.TarZstd && isSkippable(f.Head)) {
			continue
		}
		if f.Kind = m.kind; f.Kind == "" {
			return fmt.Errorf("%s: is %s, which is not supported: give a tar, a zip archive or a directory: %w", f.Path, m.is, syscall.EINVAL)
		}
		return nil
	}
	switch {
	case len(f.Head) < source.BlockSize && isTarStart(f.Head):
		return fmt.Errorf("%s: the archive ends inside its first header: copy it again: %w", f.Path, syscall.EBADMSG)
	case len(f.Head) == source.BlockSize && bytes.Count(f.Head, []byte{0}) == source.BlockSize:
		return fmt.Errorf("%s: the archive has no members: %w", f.Path, syscall.EINVAL)
	case !tar.IsHeader(f.Head):
		return fmt.Errorf("%s: is not a tar or zip archive (no header at offset 0), nor a directory: unpack=no stages a file as it is: %w", f.Path, syscall.EINVAL)
	}
	return nil
}

// isSkippable reports whether b begins with a skippable zstd frame, which pzstd writes first.
func isSkippable(b []byte) bool {
	return len(b) >= 4 && b[0]&0xf0 == 0x50 && string(b[1:4]) == "\x2a\x4d\x18"
}

// isTarStart reports whether a short head has tar's magic.
func isTarStart(b []byte) bool { return len(b) >= 262 && string(b[257:262]) == "ustar" }
