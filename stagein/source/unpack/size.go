package unpack

import (
	"encoding/binary"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// MinUnpacked is the minimal unpacked size of a compressed file of size bytes, as its format states it, and what states it. The first block of the file is head. It reads the end of a gzip file:
//
//	zstd   what the first frame states
//	gzip   what the last member states, which is the size modulo 4 GiB
//
// If that is less than the packed size, or nothing is stated, it is the packed size less what packing may add (stretch).
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

// stretch limits by which part packing can enlarge a tar. The worst is bzip2, with a hundredth.
const stretch = 32

const (
	blockLeast = 3 + 1     // bytes of a zstd block, with its header
	maxBlock   = 128 << 10 // its largest unpacked size
)

// minZstd is what the first frame states; 0 if it states nothing, or an impossible size.
func minZstd(size int64, head []byte) int64 {
	var h zstd.Header
	if h.Decode(head) != nil || !h.HasFCS || h.FrameContentSize/maxBlock > uint64(size)/blockLeast {
		return 0
	}
	return int64(h.FrameContentSize)
}

// deflated is the largest compression ratio of deflate.
const deflated = 1032

// gzipTail is the size of the checksum and the size behind the data of a member.
const gzipTail = 8

// minGzip is the size that the last member states; 0 if no tar can have it.
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
