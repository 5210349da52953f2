package unpack

import (
	"encoding/binary"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// MinUnpacked returns the minimal unpacked size of a compressed file of size bytes, and what states it: for zstd the
// size in the first frame, for gzip the size modulo 4 GiB in the last member, which it reads at the end of the file.
// head is the file's first block. If no size is stated, or less than the packed size, it returns the packed size less
// the most that packing adds (stretch).
func MinUnpacked(f io.ReaderAt, kind source.Kind, size int64, head []byte) (bytes int64, by string, err error) {
	switch kind {
	case source.TarZstd:
		by, bytes = "its first frame", minZstd(size, head)
	case source.TarGzip:
		by = "its last member"
		bytes, err = minGzip(f, size)
	}
	if packed := size - size/stretch; bytes <= packed {
		bytes, by = packed, "its packed size"
	}
	return bytes, by, err
}

// stretch bounds how much packing can enlarge a tar, as a fraction: 1/32. The worst format is bzip2, with 1/100.
const stretch = 32

const (
	blockLeast = 3 + 1     // bytes of a zstd block, with its header
	maxBlock   = 128 << 10 // its largest unpacked size
)

// minZstd returns the size stated by the first frame; 0 if it states none, or an impossible one.
func minZstd(size int64, head []byte) int64 {
	var h zstd.Header
	if h.Decode(head) != nil || !h.HasFCS || h.FrameContentSize/maxBlock > uint64(size)/blockLeast {
		return 0
	}
	return int64(h.FrameContentSize)
}

// deflated is the largest compression ratio of deflate.
const deflated = 1032

// gzipTail is the size of the checksum and the size field behind a member's data.
const gzipTail = 8

// minGzip returns the size stated by the last member; 0 if no tar can have it.
func minGzip(f io.ReaderAt, size int64) (int64, error) {
	if size < gzipTail {
		return 0, nil
	}
	b := make([]byte, gzipTail)
	if err := source.ReadFull(f, "end of the archive", b, size-gzipTail); err != nil {
		return 0, err
	}
	n := int64(binary.LittleEndian.Uint32(b[gzipTail-4:]))
	if n%source.BlockSize != 0 || n/deflated > size {
		n = 0 // not the size of a tar: the file is truncated, or has several members
	}
	return n, nil
}
