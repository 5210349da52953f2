package zip

import (
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Flags of a member.
const (
	flagEncrypted  = 1 | 1<<6 | 1<<13
	flagDescriptor = 1 << 3
	flagPatch      = 1 << 5
)

// entry is a member's entry in the central directory. Its fixed part is complete.
type entry struct{ b []byte }

func (e entry) nameEnd() int  { return entrySize + int(u16(e.b[28:])) }
func (e entry) extraEnd() int { return e.nameEnd() + int(u16(e.b[30:])) }
func (e entry) end() int      { return e.extraEnd() + int(u16(e.b[32:])) }
func (e entry) raw() []byte   { return e.b[entrySize:e.nameEnd()] }
func (e entry) extra() []byte { return e.b[e.nameEnd():e.extraEnd()] }
func (e entry) name() string  { return memberName(e.raw(), e.extra()) }

// item builds the item. If it returns an error, the item has the fields that a message needs.
func (e entry) item() (it source.Item, err error) {
	b := e.b
	it.Zip = source.ZipMember{Method: u16(b[10:]), CRC: u32(b[16:]), Name: crc32.ChecksumIEEE(e.raw())}
	if err = e.sizes(&it); err != nil {
		return it, err
	}
	switch flags := u16(b[8:]); {
	case flags&flagEncrypted != 0:
		return it, fmt.Errorf("is encrypted: %w", syscall.EINVAL)
	case flags&flagPatch != 0:
		return it, fmt.Errorf("is a patch: %w", syscall.EINVAL)
	case it.Zip.Method != Stored && it.Zip.Method != Deflated:
		return it, fmt.Errorf("is compressed by method %d; only 0 (stored) and 8 (deflate) are supported: %w", it.Zip.Method, syscall.EINVAL)
	}
	name := e.name()
	e.setMode(&it, strings.HasSuffix(name, "/"))
	if it.Path, err = source.CleanPath(name); err != nil {
		return it, err
	}
	it.Mtime = e.mtime()
	return it, e.check(&it, name)
}

// sizes reads the sizes and the offset, from the zip64 extra field if they are there.
func (e entry) sizes(it *source.Item) error {
	b := e.b
	disk := uint64(u16(b[34:]))
	fields := []struct {
		value uint64
		full  uint64
	}{{uint64(u32(b[24:])), math.MaxUint32}, {uint64(u32(b[20:])), math.MaxUint32}, {uint64(u32(b[42:])), math.MaxUint32}, {disk, math.MaxUint16}}
	var wide []byte
	extras(e.extra(), func(id uint16, data []byte) bool {
		if id == 1 {
			wide = data
		}
		return id != 1
	})
	for i := range fields {
		f := &fields[i]
		n := 8
		if i == 3 {
			n = 4
		}
		if f.value != f.full {
			continue
		}
		if len(wide) < n {
			return fmt.Errorf("a size or an offset is missing: the archive is damaged: %w", syscall.EBADMSG)
		}
		if f.value = uint64(u32(wide)); n == 8 {
			f.value = u64(wide)
		}
		wide = wide[n:]
	}
	for _, f := range fields[:3] {
		if f.value > math.MaxInt64/4 {
			return fmt.Errorf("a size or an offset of %d: the archive is damaged: %w", f.value, syscall.EBADMSG)
		}
	}
	it.Size, it.Zip.Size, it.Off = int64(fields[0].value), int64(fields[1].value), int64(fields[2].value)
	if fields[3].value != 0 {
		return fmt.Errorf("lies in another part of a multi-disk archive: %w", syscall.EINVAL)
	}
	return nil
}

// setMode sets the mode if the archive was made on a system that has modes.
func (e entry) setMode(it *source.Item, slash bool) {
	const unix, darwin = 3, 19
	attr := u32(e.b[38:])
	if host := e.b[5]; host == unix || host == darwin {
		it.Mode = attr >> 16
	}
	if slash || attr&0x10 != 0 && it.Mode&source.TypeMask == 0 && it.Size == 0 && e.b[5] == 0 {
		it.Mode = it.Mode&^source.TypeMask | source.TypeDir
	}
	if it.Mode&source.TypeMask == 0 {
		it.Mode |= source.TypeRegular
	}
	switch perm := it.Mode & 0o7777; {
	case perm != 0:
	case it.Is(source.TypeDir):
		it.Mode |= 0o755
	default:
		it.Mode |= 0o644
	}
}

// maxDeflate is the largest ratio of unpacked to deflated bytes.
const maxDeflate = 1032

func (e entry) check(it *source.Item, name string) error {
	lie := it.Zip.Method == Stored && it.Size != it.Zip.Size || it.Size/maxDeflate > it.Zip.Size
	slash := strings.HasSuffix(name, "/")
	switch {
	case lie:
		return fmt.Errorf("%d bytes cannot unpack to %d: its sizes are wrong: the archive is damaged: %w", it.Zip.Size, it.Size, syscall.EBADMSG)
	case it.Is(source.TypeDir) && it.Size != 0:
		return fmt.Errorf("a directory with %d bytes of data: %w", it.Size, syscall.EBADMSG)
	case !it.Is(source.TypeDir) && (it.Path == "" || slash):
		return fmt.Errorf("no name: %w", syscall.EINVAL)
	case it.Is(source.TypeSymlink) && (it.Size == 0 || it.Size > source.MaxTarget):
		return fmt.Errorf("a symbolic link with a target of %d bytes: %w", it.Size, syscall.EINVAL)
	case !it.Is(source.TypeDir) && !it.Is(source.TypeRegular) && !it.Is(source.TypeSymlink):
		return fmt.Errorf("is %s: %w", source.TypeName(it.Mode), syscall.EINVAL)
	}
	return nil
}

// mtime returns the time from the most precise field. An MS-DOS time, which has no zone, is taken as UTC.
func (e entry) mtime() metadata.Time {
	date, clock := u16(e.b[14:]), u16(e.b[12:])
	t := metadata.TimeOf(time.Date(int(date>>9)+1980, time.Month(date>>5&0xf), int(date&0x1f), int(clock>>11), int(clock>>5&0x3f), int(clock&0x1f)*2, 0, time.UTC))
	extras(e.extra(), func(id uint16, b []byte) bool {
		switch {
		case id == 0x5455 && len(b) >= 5 && b[0]&1 != 0: // extended timestamp
			t = source.ClampTime(int64(int32(u32(b[1:]))), 0)
			return false
		case id == 0x5855 && len(b) >= 8: // Info-ZIP's older field
			t = source.ClampTime(int64(int32(u32(b[4:]))), 0)
		case id == 0x000a && len(b) >= 32 && u16(b[4:]) == 1: // NTFS
			const since1601 = 11_644_473_600
			ticks := int64(u64(b[8:]) & math.MaxInt64) // 100 ns each
			t = source.ClampTime(ticks/1e7-since1601, ticks%1e7*100)
		}
		return true
	})
	return t
}
