package model

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mounts is one directory as shown by several mounts. It is not safe for concurrent use.
type Mounts struct {
	dirs    []string // one per mount
	handles map[int]real
}

// real is an open file of the system under test.
type real struct{ fd, mount int }

// NewMounts takes the path of one directory through each mount.
func NewMounts(dirs ...string) *Mounts {
	return &Mounts{dirs: dirs, handles: make(map[int]real)}
}

// Close closes the files that the script left open.
func (m *Mounts) Close() error {
	var errs []error
	for slot, h := range m.handles {
		errs = append(errs, unix.Close(h.fd))
		delete(m.handles, slot)
	}
	return errors.Join(errs...)
}

func (m *Mounts) path(o Op) string { return filepath.Join(m.dirs[o.Mount], "/"+o.Path) }
func (m *Mounts) to(o Op) string   { return filepath.Join(m.dirs[o.Mount], "/"+o.To) }

// Do runs a step.
func (m *Mounts) Do(o Op) Result {
	if call, ok := onHandle[o.Kind]; ok {
		h, ok := m.handles[o.H]
		if !ok {
			return failed(syscall.EBADF)
		}
		return call(m, h, o)
	}
	return onPath[o.Kind](m, m.path(o), o)
}

// of converts the result of a call.
func of(n int, err error) Result {
	if err != nil {
		return failed(errno(err))
	}
	return Result{N: int64(n)}
}

func errno(err error) syscall.Errno {
	var no syscall.Errno
	if err != nil && !errors.As(err, &no) {
		no = syscall.EIO
	}
	return no
}

// onHandle implements the steps on open files.
var onHandle = map[string]func(m *Mounts, h real, o Op) Result{
	"close": func(m *Mounts, h real, o Op) Result {
		delete(m.handles, o.H)
		return of(0, unix.Close(h.fd))
	},
	"read": func(_ *Mounts, h real, o Op) Result {
		return reading(o.Len, func(b []byte) (int, error) { return unix.Read(h.fd, b) })
	},
	"pread": func(_ *Mounts, h real, o Op) Result {
		return reading(o.Len, func(b []byte) (int, error) { return unix.Pread(h.fd, b, o.Off) })
	},
	"write":     func(_ *Mounts, h real, o Op) Result { return of(unix.Write(h.fd, content(o.Seed, o.Len))) },
	"pwrite":    func(_ *Mounts, h real, o Op) Result { return of(unix.Pwrite(h.fd, content(o.Seed, o.Len), o.Off)) },
	"lseek":     func(_ *Mounts, h real, o Op) Result { return seek(h, o) },
	"ftruncate": func(_ *Mounts, h real, o Op) Result { return of(0, unix.Ftruncate(h.fd, o.Len)) },
	"fallocate": func(_ *Mounts, h real, o Op) Result {
		return of(0, unix.Fallocate(h.fd, uint32(o.Flags), o.Off, o.Len))
	},
	"fsync":  func(_ *Mounts, h real, _ Op) Result { return of(0, unix.Fsync(h.fd)) },
	"fchmod": func(_ *Mounts, h real, o Op) Result { return of(0, unix.Fchmod(h.fd, o.Mode)) },
	"fstat": func(_ *Mounts, h real, _ Op) Result {
		var st unix.Stat_t
		return attrOf(&st, unix.Fstat(h.fd, &st))
	},
	"futimens": func(_ *Mounts, h real, o Op) Result {
		return of(0, unix.Futimes(h.fd, []unix.Timeval{{Sec: o.Seed}, {Sec: o.Seed + 1}}))
	},
	"list": func(_ *Mounts, h real, _ Op) Result {
		if _, err := unix.Seek(h.fd, 0, unix.SEEK_SET); err != nil {
			return of(0, err)
		}
		return entries(h.fd)
	},
	"copyrange": (*Mounts).copyrange,
}

func reading(n int64, read func(b []byte) (int, error)) Result {
	b := make([]byte, n)
	got, err := read(b)
	if err != nil {
		return of(0, err)
	}
	return Result{N: int64(got), Data: b[:got]}
}

func seek(h real, o Op) Result {
	n, err := unix.Seek(h.fd, o.Off, o.Flags)
	return of(int(n), err)
}

func (m *Mounts) copyrange(src real, o Op) Result {
	dst, ok := m.handles[o.slot()]
	if !ok {
		return failed(syscall.EBADF)
	}
	if src.mount != dst.mount {
		return failed(syscall.EXDEV)
	}
	// The kernel copies up to the size it knows, from its cached pages. Programs stat the file before they copy; the
	// read refreshes the pages.
	var st unix.Stat_t
	if err := unix.Fstat(src.fd, &st); err != nil {
		return of(0, err)
	}
	if _, err := unix.Pread(src.fd, make([]byte, 1), 0); err != nil && err != unix.EBADF {
		return of(0, err)
	}
	from, to := o.Off, o.Seed
	return of(unix.CopyFileRange(src.fd, &from, dst.fd, &to, int(o.Len), 0))
}

func attrOf(st *unix.Stat_t, err error) Result {
	if err != nil {
		return of(0, err)
	}
	a := &Attr{Ino: st.Ino, Mode: st.Mode, Nlink: uint64(st.Nlink), Size: st.Size, Atime: st.Atim.Sec, Mtime: st.Mtim.Sec}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		a.Size = -1
	}
	return Result{Attr: a}
}

// entries lists an open directory.
func entries(fd int) Result {
	r := Result{Names: []string{}}
	b := make([]byte, 8<<10)
	for {
		n, err := unix.Getdents(fd, b)
		if err != nil {
			return of(0, err)
		}
		if n == 0 {
			slices.Sort(r.Names)
			return r
		}
		r.Names = append(r.Names, parseDirents(b[:n])...)
	}
}

func parseDirents(b []byte) (names []string) {
	const nameAt = 19
	for len(b) > nameAt {
		n := int(b[16]) | int(b[17])<<8
		name, _, _ := strings.Cut(string(b[nameAt:n]), "\x00")
		if name != "." && name != ".." {
			names = append(names, name+typeMark(uint32(b[18])<<12))
		}
		b = b[n:]
	}
	return names
}

// onPath implements the steps on names.
var onPath = map[string]func(m *Mounts, path string, o Op) Result{
	"open":     (*Mounts).open,
	"truncate": func(_ *Mounts, path string, o Op) Result { return of(0, unix.Truncate(path, o.Len)) },
	"stat": func(_ *Mounts, path string, _ Op) Result {
		var st unix.Stat_t
		return attrOf(&st, unix.Stat(path, &st))
	},
	"lstat": func(_ *Mounts, path string, _ Op) Result {
		var st unix.Stat_t
		return attrOf(&st, unix.Lstat(path, &st))
	},
	"chmod": func(_ *Mounts, path string, o Op) Result { return of(0, unix.Chmod(path, o.Mode)) },
	"utimens": func(_ *Mounts, path string, o Op) Result {
		return of(0, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Sec: o.Seed}, {Sec: o.Seed + 1}}, o.Flags))
	},
	"readdir": func(_ *Mounts, path string, _ Op) Result { return readdir(path) },
	"mkdir":   func(_ *Mounts, path string, o Op) Result { return of(0, unix.Mkdir(path, o.Mode)) },
	"rmdir":   func(_ *Mounts, path string, _ Op) Result { return of(0, unix.Rmdir(path)) },
	"unlink":  func(_ *Mounts, path string, _ Op) Result { return of(0, unix.Unlink(path)) },
	"rename": func(m *Mounts, path string, o Op) Result {
		return of(0, unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, m.to(o), uint(o.Flags)))
	},
	"link": func(m *Mounts, path string, o Op) Result {
		return of(0, unix.Linkat(unix.AT_FDCWD, path, unix.AT_FDCWD, m.to(o), o.Flags))
	},
	"symlink": func(_ *Mounts, path string, o Op) Result { return of(0, unix.Symlink(o.To, path)) },
	"readlink": func(_ *Mounts, path string, _ Op) Result {
		return reading(4096, func(b []byte) (int, error) { return unix.Readlink(path, b) })
	},
	"mkfifo": func(_ *Mounts, path string, o Op) Result { return of(0, unix.Mkfifo(path, o.Mode)) },
	"setxattr": func(_ *Mounts, path string, o Op) Result {
		return of(0, unix.Lsetxattr(path, xattrName(o.Name), content(o.Seed, o.Len), o.Flags))
	},
	"getxattr": func(_ *Mounts, path string, o Op) Result {
		return reading(1<<16, func(b []byte) (int, error) { return unix.Lgetxattr(path, xattrName(o.Name), b) })
	},
	"listxattr": func(_ *Mounts, path string, _ Op) Result { return listXattrs(path) },
	"delxattr":  func(_ *Mounts, path string, o Op) Result { return of(0, unix.Lremovexattr(path, xattrName(o.Name))) },
}

// open never waits for a pipe's other end: the runner opens no pipes.
func (m *Mounts) open(path string, o Op) Result {
	if h, ok := m.handles[o.H]; ok {
		delete(m.handles, o.H)
		if err := unix.Close(h.fd); err != nil {
			return of(0, err)
		}
	}
	fd, err := unix.Open(path, o.Flags|unix.O_CLOEXEC, o.Mode)
	if err != nil {
		return of(0, err)
	}
	m.handles[o.H] = real{fd, o.Mount}
	return Result{}
}

func readdir(path string) Result {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return of(0, err)
	}
	defer func() { _ = unix.Close(fd) }() // a directory
	return entries(fd)
}

const userPrefix = "user."

// xattrName prefixes the user name space. Names that are too long stay too long.
func xattrName(name string) string {
	if len(name) > maxName-len(userPrefix) {
		return userPrefix + name
	}
	return userPrefix + "t." + name
}

// listXattrs lists the tests' xattrs.
func listXattrs(path string) Result {
	b := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, b)
	if err != nil {
		return of(0, err)
	}
	var names []string
	for name := range strings.SplitSeq(string(b[:n]), "\x00") {
		if name, ok := strings.CutPrefix(name, userPrefix+"t."); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return Result{Names: names}
}

// Umask returns the mask of this process. It is read once, because reading it briefly changes it for all threads.
var Umask = sync.OnceValue(func() uint32 {
	m := unix.Umask(0)
	unix.Umask(m)
	return uint32(m)
})

var _ = Umask() // before anything runs
