package model

import (
	"bytes"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// open opens or creates the file at a path.
func (f *FS) open(o Op) Result {
	delete(f.handles, o.H)
	i, no := f.openInode(o)
	if no != 0 {
		return failed(no)
	}
	if o.Flags&unix.O_TRUNC != 0 && i.file() {
		i.resize(0)
	}
	f.handles[o.H] = &handle{inode: i, flags: o.Flags, mount: o.Mount}
	return Result{}
}

func (f *FS) openInode(o Op) (*inode, syscall.Errno) {
	has := func(flag int) bool { return o.Flags&flag != 0 }
	if has(unix.O_CREAT) && has(unix.O_DIRECTORY) {
		return nil, syscall.EINVAL
	}
	follow := !has(unix.O_NOFOLLOW) && !(has(unix.O_CREAT) && has(unix.O_EXCL))
	p, no := f.walk(o.Path, follow)
	switch i := p.inode; {
	case no != 0:
		return nil, no
	case i == nil && !has(unix.O_CREAT):
		return nil, syscall.ENOENT
	case i == nil:
		return f.makeAt(p, unix.S_IFREG|o.Mode&^f.Umask), 0
	case has(unix.O_CREAT) && has(unix.O_EXCL):
		return nil, syscall.EEXIST
	case has(unix.O_DIRECTORY) && !i.dir():
		return nil, syscall.ENOTDIR
	case i.link():
		return nil, syscall.ELOOP
	case i.dir() && (has(unix.O_CREAT) || has(unix.O_TRUNC) || o.Flags&unix.O_ACCMODE != unix.O_RDONLY):
		return nil, syscall.EISDIR
	}
	return p.inode, 0
}

func (f *FS) close(o Op) Result {
	if f.handles[o.H] == nil {
		return failed(syscall.EBADF)
	}
	delete(f.handles, o.H)
	return Result{}
}

// readable returns a handle that is open for reading.
func (f *FS) readable(slot int) (*handle, syscall.Errno) {
	h := f.handles[slot]
	switch {
	case h == nil || h.flags&unix.O_ACCMODE == unix.O_WRONLY:
		return nil, syscall.EBADF
	case h.dir():
		return nil, syscall.EISDIR
	}
	return h, 0
}

func (f *FS) writable(slot int) (*handle, syscall.Errno) {
	h := f.handles[slot]
	if h == nil || h.flags&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, syscall.EBADF
	}
	return h, 0
}

func (f *FS) read(o Op) Result {
	h, no := f.readable(o.H)
	if no == syscall.EISDIR {
		return Result{Check: unreadable}
	}
	if no != 0 {
		return failed(no)
	}
	b := h.at(h.pos, o.Len)
	h.pos += int64(len(b))
	return Result{N: int64(len(b)), Data: b}
}

// unreadable checks a read of a directory: EISDIR, or EINVAL at a position where nothing can be read.
func unreadable(got Result) string {
	if got.Err != syscall.EISDIR && got.Err != syscall.EINVAL {
		return fmt.Sprintf("%v of a directory", got)
	}
	return ""
}

func (f *FS) pread(o Op) Result {
	if o.Off < 0 && f.handles[o.H] != nil {
		return failed(syscall.EINVAL)
	}
	h, no := f.readable(o.H)
	if no != 0 {
		return failed(no)
	}
	b := h.at(o.Off, o.Len)
	return Result{N: int64(len(b)), Data: b}
}

// at returns the result of a read.
func (i *inode) at(off, n int64) []byte {
	i.atime = 0
	size := int64(len(i.data))
	off = min(off, size)
	return bytes.Clone(i.data[off:min(off+n, size)])
}

func (f *FS) write(o Op) Result {
	h, no := f.writable(o.H)
	if no != 0 {
		return failed(no)
	}
	if h.flags&unix.O_APPEND != 0 && o.Len > 0 {
		h.pos = int64(len(h.data))
	}
	h.put(h.pos, content(o.Seed, o.Len))
	h.pos += o.Len
	return Result{N: o.Len}
}

// pwrite appends, ignoring its offset, if the file was opened with O_APPEND, as Linux does.
func (f *FS) pwrite(o Op) Result {
	if o.Off < 0 && f.handles[o.H] != nil {
		return failed(syscall.EINVAL)
	}
	h, no := f.writable(o.H)
	if no != 0 {
		return failed(no)
	}
	off := o.Off
	if h.flags&unix.O_APPEND != 0 {
		off = int64(len(h.data))
	}
	h.put(off, content(o.Seed, o.Len))
	return Result{N: o.Len}
}

func (h *handle) put(off int64, b []byte) {
	if len(b) == 0 {
		return
	}
	h.wrote = true
	h.changed()
	if end := off + int64(len(b)); end > int64(len(h.data)) {
		h.resize(end)
	}
	copy(h.data[off:], b)
}

// resize truncates or appends zeros.
func (i *inode) resize(n int64) {
	i.changed()
	if n <= int64(len(i.data)) {
		i.data = bytes.Clone(i.data[:n])
		return
	}
	i.data = append(i.data, make([]byte, n-int64(len(i.data)))...)
}

func (f *FS) ftruncate(o Op) Result {
	h := f.handles[o.H]
	switch {
	case o.Len < 0:
		return failed(syscall.EINVAL)
	case h == nil:
		return failed(syscall.EBADF)
	case !h.file() || h.flags&unix.O_ACCMODE == unix.O_RDONLY:
		return failed(syscall.EINVAL)
	}
	h.resize(o.Len)
	return Result{}
}

const (
	keepSize  = 1
	punchHole = 2
	zeroRange = 16
)

func (f *FS) fallocate(o Op) Result {
	h := f.handles[o.H]
	switch {
	case h == nil:
		return failed(syscall.EBADF)
	case o.Off < 0 || o.Len <= 0:
		return failed(syscall.EINVAL)
	case o.Flags != 0 && o.Flags != keepSize && o.Flags != punchHole|keepSize && o.Flags&^keepSize != zeroRange:
		return failed(syscall.EOPNOTSUPP)
	case h.flags&unix.O_ACCMODE == unix.O_RDONLY:
		return failed(syscall.EBADF)
	}
	h.wrote = true
	h.changed()
	end := o.Off + o.Len
	if end > int64(len(h.data)) && o.Flags&keepSize == 0 {
		h.resize(end)
	}
	if o.Flags&(punchHole|zeroRange) != 0 && o.Off < int64(len(h.data)) {
		clear(h.data[o.Off:min(end, int64(len(h.data)))])
	}
	return Result{}
}

func (f *FS) lseek(o Op) Result {
	h := f.handles[o.H]
	if h == nil {
		return failed(syscall.EBADF)
	}
	if h.dir() { // positions in a directory are up to the system
		return Result{Check: func(Result) string { return "" }}
	}
	pos := o.Off
	switch o.Flags {
	case unix.SEEK_CUR:
		pos += h.pos
	case unix.SEEK_END:
		pos += int64(len(h.data))
	case unix.SEEK_DATA, unix.SEEK_HOLE:
		return h.seekExtent(o)
	}
	if pos < 0 {
		return failed(syscall.EINVAL)
	}
	h.pos = pos
	return Result{N: pos}
}

// seekExtent leaves holes to the system: zeros may be a hole, other bytes are not, and the end of the file is one.
// The new position is the system's; the runner sets it.
func (h *handle) seekExtent(o Op) Result {
	size := int64(len(h.data))
	if o.Off < 0 || o.Off >= size {
		return failed(syscall.ENXIO)
	}
	return Result{Check: func(got Result) string {
		if o.Flags == unix.SEEK_DATA && got.Err == syscall.ENXIO && zeros(h.data[o.Off:]) {
			return ""
		}
		if got.Err != 0 {
			return fmt.Sprintf("%v, want a position", got)
		}
		n := got.N
		switch {
		case n < o.Off || n > size:
			return fmt.Sprintf("%d, want one of %d to %d", n, o.Off, size)
		case o.Flags == unix.SEEK_DATA && (n == size || !zeros(h.data[o.Off:n])):
			return fmt.Sprintf("%d, but there is data before", n)
		case o.Flags == unix.SEEK_HOLE && n < size && h.data[n] != 0:
			return fmt.Sprintf("%d, but there is data", n)
		}
		h.pos = n
		return ""
	}}
}

func zeros(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

func (f *FS) fsync(o Op) Result {
	h := f.handles[o.H]
	if h == nil {
		return failed(syscall.EBADF)
	}
	h.wrote = false
	return Result{}
}

func (f *FS) fstat(o Op) Result {
	h := f.handles[o.H]
	if h == nil {
		return failed(syscall.EBADF)
	}
	return Result{Attr: h.attr()}
}

func (f *FS) fchmod(o Op) Result {
	h := f.handles[o.H]
	if h == nil {
		return failed(syscall.EBADF)
	}
	h.mode = h.kind() | o.Mode
	return Result{}
}

func (f *FS) futimens(o Op) Result {
	h := f.handles[o.H]
	if h == nil {
		return failed(syscall.EBADF)
	}
	h.atime, h.mtime = o.Seed, o.Seed+1
	return Result{}
}

// list runs readdir from the start through an open directory. A removed directory lists nothing, or is ENOENT.
func (f *FS) list(o Op) Result {
	h := f.handles[o.H]
	if h == nil {
		return failed(syscall.EBADF)
	}
	h.pos = 0
	if !h.dir() {
		return failed(syscall.ENOTDIR)
	}
	h.atime = 0
	if h.nlink > 0 {
		return Result{Names: h.names()}
	}
	return Result{Check: func(got Result) string {
		if got.Err == syscall.ENOENT || got.Err == 0 && len(got.Names) == 0 {
			return ""
		}
		return fmt.Sprintf("%v of a removed directory", got)
	}}
}

// copyrange copies from handle H at Off to the handle in slot To at Seed. Between two mounts the runner expects
// EXDEV. The system may copy less than requested.
func (f *FS) copyrange(o Op) Result {
	src, dst := f.handles[o.H], f.handles[o.slot()]
	switch {
	case src == nil || dst == nil:
		return failed(syscall.EBADF)
	case src.mount != dst.mount:
		return failed(syscall.EXDEV)
	case src.dir() || dst.dir():
		return failed(syscall.EISDIR)
	case src.flags&unix.O_ACCMODE == unix.O_WRONLY || dst.flags&unix.O_ACCMODE == unix.O_RDONLY || dst.flags&unix.O_APPEND != 0:
		return failed(syscall.EBADF)
	}
	b := src.at(o.Off, o.Len)
	if src.inode == dst.inode && o.Off < o.Seed+int64(len(b)) && o.Seed < o.Off+int64(len(b)) {
		return failed(syscall.EINVAL) // they overlap
	}
	return Result{Check: func(got Result) string {
		if got.Err != 0 || got.N > int64(len(b)) || got.N == 0 && len(b) > 0 {
			return fmt.Sprintf("%v, want up to %d", got, len(b))
		}
		dst.put(o.Seed, b[:got.N])
		return ""
	}}
}
