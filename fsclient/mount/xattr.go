package mount

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// xattrKind is how the mount treats an extended attribute.
type xattrKind uint8

const (
	xattrRefused xattrKind = iota // this kind of attribute is not supported
	xattrAbsent                   // no file has one, and none can be set
	xattrKept                     // kept by the store
	xattrBare                     // a prefix without a name
)

// The prefixes of attributes that the store keeps. The kernel lets only CAP_SYS_ADMIN read trusted., and set both.
const (
	userXattr     = "user."
	trustedXattr  = "trusted."
	securityXattr = "security."
)

// kernelXattrs are the names after security. of attributes by which the kernel decides. None would have an effect here:
// the mount is nosuid, and has no labels.
var kernelXattrs = []string{"capability", "selinux", "ima", "evm", "apparmor", "SMACK64"}

// labelXattr is the attribute that ls -l asks for at every file, until a file system has answered once that it does not
// support it.
const labelXattr = "security.selinux"

// kindOf classifies an attribute without a call, so that it costs nothing when the kernel asks at writes
// (security.capability, before Linux 5.11 at each) and ls at every file.
func kindOf(name string) xattrKind {
	switch {
	case name == userXattr, name == trustedXattr, name == securityXattr:
		return xattrBare
	case strings.HasPrefix(name, userXattr), strings.HasPrefix(name, trustedXattr):
		return xattrKept
	}
	if of, ok := strings.CutPrefix(name, securityXattr); ok {
		if slices.ContainsFunc(kernelXattrs, func(k string) bool { return strings.HasPrefix(of, k) }) {
			return xattrAbsent
		}
		return xattrKept
	}
	return xattrRefused // POSIX ACLs, and unknown attributes
}

// GetXAttr reads an extended attribute.
func (s *fsys) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (n uint32, code fuse.Status) {
	kind := kindOf(name)
	switch {
	case kind == xattrRefused, name == labelXattr:
		s.stats.calls[opGetxattr].Add(1)
		return 0, notSupported
	case kind == xattrBare:
		s.stats.calls[opGetxattr].Add(1)
		return 0, fuse.EINVAL
	case kind == xattrAbsent, virtual(metadata.Ino(h.NodeId)):
		s.stats.calls[opGetxattr].Add(1)
		return 0, fuse.ENODATA
	}
	code = s.call(opGetxattr, cancel, h, func(ctx context.Context) error {
		v, err := s.client.Getxattr(ctx, metadata.Ino(h.NodeId), name)
		if err == nil {
			n, err = put(dest, v)
		}
		return stale(err)
	})
	return n, code
}

// put copies v to dest. It returns the length of v with ERANGE too: the kernel asks for the length with an empty dest.
func put(dest, v []byte) (uint32, error) {
	if len(v) > len(dest) {
		return uint32(len(v)), syscall.ERANGE
	}
	return uint32(copy(dest, v)), nil
}

// ListXAttr lists the extended attributes.
func (s *fsys) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (n uint32, code fuse.Status) {
	code = s.call(opListxattr, cancel, h, func(ctx context.Context) error {
		ino := metadata.Ino(h.NodeId)
		if virtual(ino) {
			return nil
		}
		names, err := s.client.Listxattr(ctx, ino)
		if err != nil {
			return stale(err)
		}
		var list []byte
		for _, name := range names {
			if kindOf(name) == xattrKept && (h.Uid == 0 || !strings.HasPrefix(name, trustedXattr)) {
				list = append(append(list, name...), 0)
			}
		}
		n, err = put(dest, list)
		return err
	})
	return n, code
}

// SetXAttr sets an extended attribute.
func (s *fsys) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	if kind := kindOf(name); kind != xattrKept && writable(metadata.Ino(in.NodeId)) == nil {
		s.stats.calls[opSetxattr].Add(1)
		if kind == xattrBare {
			return fuse.EINVAL
		}
		return notSupported
	}
	var err error
	code := s.call(opSetxattr, cancel, &in.InHeader, func(ctx context.Context) error {
		ino := metadata.Ino(in.NodeId)
		if err := writable(ino); err != nil {
			return err
		}
		if in.Flags > uint32(metadata.XattrReplace) {
			return syscall.EINVAL
		}
		err = s.client.Setxattr(ctx, ino, metadata.Xattr{Name: name, Value: value, Mode: metadata.XattrMode(in.Flags)})
		return stale(err)
	})
	if code != fuse.OK && strings.HasPrefix(name, fsclient.ReservedXattr) {
		s.warn(s.log.WithError(err), "layout attribute not set")
	}
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return notSupported
	}
	return code
}

// RemoveXAttr removes an extended attribute.
func (s *fsys) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if kind := kindOf(name); kind != xattrKept && writable(metadata.Ino(h.NodeId)) == nil {
		s.stats.calls[opRemovexattr].Add(1)
		switch kind {
		case xattrBare:
			return fuse.EINVAL
		case xattrAbsent:
			return fuse.ENODATA
		}
		return notSupported
	}
	return s.call(opRemovexattr, cancel, h, func(ctx context.Context) error {
		ino := metadata.Ino(h.NodeId)
		if err := writable(ino); err != nil {
			return err
		}
		return stale(s.client.Removexattr(ctx, ino, name))
	})
}

// The flags of inodes (chattr, xfs_io) that a file can have. Immutable and append-only files would cost a check at each
// change, by every node that has them open.
const (
	flagNodump  = 0x40 // FS_NODUMP_FL
	flagNoatime = 0x80 // FS_NOATIME_FL
	// flagsXattr keeps the flags of a file that has any. Programs can neither name nor list it.
	flagsXattr = "bivouac.flags"
)

// The ioctl requests for flags that golang.org/x/sys lacks, with struct fsxattr.
const (
	fsGetXattr  = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr  = 0x401c5820 // FS_IOC_FSSETXATTR
	fsXattrSize = 28
)

// Ioctl reads and sets the flags of an inode. The kernel has checked that the caller may set them.
func (s *fsys) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, arg []byte, _ *fuse.IoctlOut, out []byte) fuse.Status {
	ino := metadata.Ino(in.NodeId)
	get := func(convert func(uint32) uint32) fuse.Status {
		return s.call(opGetxattr, cancel, &in.InHeader, func(ctx context.Context) error {
			flags, err := inodeFlags(ctx, s.client, ino)
			clear(out)
			binary.NativeEndian.PutUint32(out, convert(flags))
			return stale(err)
		})
	}
	set := func(flags uint32) fuse.Status {
		if flags&^(flagNodump|flagNoatime) != 0 {
			return notSupported
		}
		return s.call(opSetxattr, cancel, &in.InHeader, func(ctx context.Context) error {
			return stale(setInodeFlags(ctx, s.client, ino, flags))
		})
	}
	switch {
	case in.Cmd == unix.FS_IOC_GETFLAGS && len(out) >= 4:
		return get(func(flags uint32) uint32 { return flags })
	case in.Cmd == fsGetXattr && len(out) >= fsXattrSize:
		return get(swapFlags)
	case in.Cmd == unix.FS_IOC_SETFLAGS && len(arg) >= 4:
		return set(binary.NativeEndian.Uint32(arg))
	case in.Cmd == fsSetXattr && len(arg) >= fsXattrSize:
		if slices.ContainsFunc(arg[4:fsXattrSize], func(b byte) bool { return b != 0 }) { // extent size, project
			return notSupported
		}
		return set(swapFlags(binary.NativeEndian.Uint32(arg)))
	}
	return fuse.Status(syscall.ENOTTY)
}

// swapFlags converts flags from and to those of struct fsxattr, in which the two bits are exchanged.
func swapFlags(f uint32) uint32 {
	return f&^(flagNodump|flagNoatime) | f&flagNodump<<1 | f&flagNoatime>>1
}

func inodeFlags(ctx context.Context, c *fsclient.Client, ino metadata.Ino) (uint32, error) {
	if virtual(ino) {
		return 0, nil
	}
	v, err := c.Getxattr(ctx, ino, flagsXattr)
	if err != nil || len(v) != 4 {
		return 0, ignore(err, syscall.ENODATA)
	}
	return binary.LittleEndian.Uint32(v), nil
}

func setInodeFlags(ctx context.Context, c *fsclient.Client, ino metadata.Ino, flags uint32) error {
	if err := writable(ino); err != nil {
		return err
	}
	if flags == 0 {
		return ignore(c.Removexattr(ctx, ino, flagsXattr), syscall.ENODATA)
	}
	return c.Setxattr(ctx, ino, metadata.Xattr{Name: flagsXattr, Value: binary.LittleEndian.AppendUint32(nil, flags)})
}

// ignore returns err, or nil if err is e.
func ignore(err error, e syscall.Errno) error {
	if errors.Is(err, e) {
		return nil
	}
	return err
}
