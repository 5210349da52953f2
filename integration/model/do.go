package model

import (
	"maps"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// apply maps each kind of step to its effect on the model.
var apply = map[string]func(f *FS, o Op) Result{
	"open": (*FS).open, "close": (*FS).close, "read": (*FS).read, "pread": (*FS).pread, "write": (*FS).write, "pwrite": (*FS).pwrite,
	"lseek": (*FS).lseek, "ftruncate": (*FS).ftruncate, "fallocate": (*FS).fallocate, "fsync": (*FS).fsync, "fstat": (*FS).fstat,
	"fchmod": (*FS).fchmod, "futimens": (*FS).futimens, "list": (*FS).list, "truncate": (*FS).truncate, "stat": (*FS).stat,
	"lstat": (*FS).lstat, "chmod": (*FS).chmod, "utimens": (*FS).utimens, "readdir": (*FS).readdir, "mkdir": (*FS).mkdir,
	"rmdir": (*FS).rmdir, "unlink": (*FS).unlink, "rename": (*FS).rename, "link": (*FS).link, "symlink": (*FS).symlink,
	"readlink": (*FS).readlink, "mkfifo": (*FS).mkfifo, "setxattr": (*FS).setxattr, "getxattr": (*FS).getxattr,
	"listxattr": (*FS).listxattr, "delxattr": (*FS).delxattr, "copyrange": (*FS).copyrange,
}

// Do runs a step.
func (f *FS) Do(o Op) Result { return apply[o.Kind](f, o) }

func failed(no syscall.Errno) Result { return Result{Err: no} }

func (f *FS) stat(o Op) Result  { return f.statPath(o.Path, true) }
func (f *FS) lstat(o Op) Result { return f.statPath(o.Path, false) }

func (f *FS) statPath(path string, follow bool) Result {
	i, no := f.find(path, follow)
	if no != 0 {
		return failed(no)
	}
	return Result{Attr: i.attr()}
}

func (f *FS) chmod(o Op) Result {
	i, no := f.find(o.Path, true)
	if no == 0 {
		i.mode = i.kind() | o.Mode
	}
	return failed(no)
}

func (f *FS) utimens(o Op) Result {
	i, no := f.find(o.Path, o.Flags == 0)
	if no == 0 {
		i.atime, i.mtime = o.Seed, o.Seed+1
	}
	return failed(no)
}

func (f *FS) truncate(o Op) Result {
	i, no := f.find(o.Path, true)
	switch {
	case o.Len < 0:
		return failed(syscall.EINVAL)
	case no != 0:
		return failed(no)
	case i.dir():
		return failed(syscall.EISDIR)
	case !i.file():
		return failed(syscall.EINVAL)
	}
	i.resize(o.Len)
	return Result{}
}

func (i *inode) names() []string {
	names := make([]string, 0, len(i.entries))
	for name, e := range i.entries {
		names = append(names, name+typeMark(e.mode))
	}
	slices.Sort(names)
	return names
}

// typeMark returns the suffix of a name in a listing, so that types are compared, too.
func typeMark(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "/"
	case unix.S_IFLNK:
		return "@"
	case unix.S_IFIFO:
		return "|"
	}
	return ""
}

func (f *FS) readdir(o Op) Result {
	i, no := f.find(o.Path, true)
	switch {
	case no != 0:
		return failed(no)
	case !i.dir():
		return failed(syscall.ENOTDIR)
	}
	i.atime = 0
	return Result{Names: i.names()}
}

func (f *FS) readlink(o Op) Result {
	i, no := f.find(o.Path, false)
	switch {
	case no != 0:
		return failed(no)
	case !i.link():
		return failed(syscall.EINVAL)
	}
	i.atime = 0
	return Result{N: int64(len(i.target)), Data: []byte(i.target)}
}

// fresh returns the place for a new entry.
func (f *FS) fresh(path string) (place, syscall.Errno) {
	p, no := f.walk(path, false)
	if no == 0 && p.inode != nil {
		no = syscall.EEXIST
	}
	return p, no
}

// make creates a new inode.
func (f *FS) make(path string, mode uint32) (*inode, syscall.Errno) {
	p, no := f.fresh(path)
	if no != 0 {
		return nil, no
	}
	return f.makeAt(p, mode), 0
}

func (f *FS) makeAt(p place, mode uint32) *inode {
	i := f.newInode(mode)
	if i.dir() && p.in.mode&unix.S_ISGID != 0 {
		i.mode |= unix.S_ISGID
	}
	p.enter(i)
	return i
}

func (f *FS) mkdir(o Op) Result {
	_, no := f.make(o.Path, unix.S_IFDIR|o.Mode&0o1777&^f.Umask)
	return failed(no)
}

func (f *FS) mkfifo(o Op) Result {
	_, no := f.make(o.Path, unix.S_IFIFO|o.Mode&^f.Umask)
	return failed(no)
}

func (f *FS) symlink(o Op) Result {
	if o.To == "" {
		return failed(syscall.ENOENT)
	}
	i, no := f.make(o.Path, unix.S_IFLNK|0o777)
	if no == 0 {
		i.target = o.To
	}
	return failed(no)
}

func (f *FS) rmdir(o Op) Result {
	p, no := f.walk(o.Path, false)
	switch {
	case no != 0:
		return failed(no)
	case p.inode == nil:
		return failed(syscall.ENOENT)
	case !p.dir():
		return failed(syscall.ENOTDIR)
	case len(p.entries) > 0:
		return failed(syscall.ENOTEMPTY)
	}
	p.leave()
	p.drop()
	return Result{}
}

func (f *FS) unlink(o Op) Result {
	p, no := f.walk(o.Path, false)
	switch {
	case no != 0:
		return failed(no)
	case p.inode == nil:
		return failed(syscall.ENOENT)
	case p.dir():
		return failed(syscall.EISDIR)
	}
	p.leave()
	p.drop()
	return Result{}
}

func (f *FS) link(o Op) Result {
	i, no := f.find(o.Path, o.Flags != 0)
	if no != 0 {
		return failed(no)
	}
	p, no := f.fresh(o.To)
	if no != 0 {
		return failed(no)
	}
	if i.dir() {
		return failed(syscall.EPERM)
	}
	i.nlink++
	p.enter(i)
	return Result{}
}

func (f *FS) rename(o Op) Result {
	noReplace, exchange := o.Flags&unix.RENAME_NOREPLACE != 0, o.Flags&unix.RENAME_EXCHANGE != 0
	if noReplace && exchange {
		return failed(syscall.EINVAL)
	}
	from, to, no := f.ends(o.Path, o.To)
	if no != 0 {
		return failed(no)
	}
	switch {
	case from.inode == nil:
		return failed(syscall.ENOENT)
	case noReplace && to.inode != nil:
		return failed(syscall.EEXIST)
	case exchange && to.inode == nil:
		return failed(syscall.ENOENT)
	case from.dir() && to.in.below(from.inode):
		return failed(syscall.EINVAL)
	case to.inode != nil && to.dir() && from.in.below(to.inode) && exchange:
		return failed(syscall.EINVAL)
	case to.inode != nil && to.dir() && from.in.below(to.inode):
		return failed(syscall.ENOTEMPTY)
	case from.inode == to.inode:
		return Result{}
	case exchange:
		swap(from, to)
		return Result{}
	}
	return failed(replace(from, to))
}

// ends walks to both ends of a rename. A missing directory on the way takes precedence over a name that is too long,
// as the kernel looks up the last components after both directories.
func (f *FS) ends(path, path2 string) (from, to place, no syscall.Errno) {
	from, no = f.walk(path, false)
	if no != 0 && (no != syscall.ENAMETOOLONG || !tooLong(path)) {
		return from, to, no
	}
	long := no
	to, no = f.walk(path2, false)
	if no != 0 && (no != syscall.ENAMETOOLONG || !tooLong(path2)) {
		return from, to, no
	}
	if long != 0 || from.inode == nil {
		return from, to, long
	}
	return from, to, no
}

// tooLong reports whether the last component is too long.
func tooLong(path string) bool { return len(path[strings.LastIndexByte(path, '/')+1:]) > maxName }

func swap(from, to place) {
	a, b := from.inode, to.inode
	from.leave()
	to.leave()
	place{in: from.in, name: from.name}.enter(b)
	place{in: to.in, name: to.name}.enter(a)
}

func replace(from, to place) syscall.Errno {
	if to.inode != nil {
		switch {
		case from.dir() && !to.dir():
			return syscall.ENOTDIR
		case !from.dir() && to.dir():
			return syscall.EISDIR
		case len(to.entries) > 0:
			return syscall.ENOTEMPTY
		}
		to.leave()
		to.drop()
	}
	from.leave()
	to.enter(from.inode)
	return 0
}

// userXattr finds the inode whose attribute a step uses.
func (f *FS) userXattr(o Op, refusal syscall.Errno) (*inode, syscall.Errno) {
	if len(o.Name) > maxName {
		return nil, syscall.ERANGE
	}
	i, no := f.find(o.Path, false)
	if no == 0 && !i.file() && !i.dir() {
		no = refusal
	}
	return i, no
}

func (f *FS) setxattr(o Op) Result {
	if o.Len > 1<<16 && len(o.Name) <= maxName {
		return failed(syscall.E2BIG)
	}
	i, no := f.userXattr(o, syscall.EPERM)
	if no != 0 {
		return failed(no)
	}
	_, there := i.xattrs[o.Name]
	switch {
	case there && o.Flags == unix.XATTR_CREATE:
		return failed(syscall.EEXIST)
	case !there && o.Flags == unix.XATTR_REPLACE:
		return failed(syscall.ENODATA)
	}
	i.xattrs[o.Name] = content(o.Seed, o.Len)
	return Result{}
}

func (f *FS) getxattr(o Op) Result {
	i, no := f.userXattr(o, syscall.ENODATA)
	if no != 0 {
		return failed(no)
	}
	v, ok := i.xattrs[o.Name]
	if !ok {
		return failed(syscall.ENODATA)
	}
	return Result{N: int64(len(v)), Data: v}
}

func (f *FS) listxattr(o Op) Result {
	i, no := f.find(o.Path, false)
	if no != 0 {
		return failed(no)
	}
	return Result{Names: slices.Sorted(maps.Keys(i.xattrs))}
}

func (f *FS) delxattr(o Op) Result {
	i, no := f.userXattr(o, syscall.EPERM)
	if no != 0 {
		return failed(no)
	}
	if _, ok := i.xattrs[o.Name]; !ok {
		return failed(syscall.ENODATA)
	}
	delete(i.xattrs, o.Name)
	return Result{}
}

// content returns n bytes that are a function of seed; all pages differ, and no byte is zero.
func content(seed, n int64) []byte {
	b := make([]byte, n)
	x := uint64(seed)*0x9e3779b97f4a7c15 + 1
	for i := range b {
		if i%8 == 0 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		b[i] = byte(x>>(i%8*8)) | 1
	}
	return b
}
