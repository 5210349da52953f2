package mount

import (
	"context"
	"errors"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// xattrKind is how the mount treats an extended attribute.
type xattrKind uint8

const (
	xattrRefused  xattrKind = iota // this kind of attribute is not supported
	xattrSecurity                  // no file has one, and none can be set
	xattrUser                      // kept by the store
	xattrBare                      // a prefix without a name
)

// labelXattr is what ls -l asks for at every file, until a file system has answered once
// that it does not support it.
const labelXattr = "security.selinux"

// kindOf needs no call, so that requests of the kernel at writes (security.capability,
// before Linux 5.11 at each) and of ls at every file cost none.
func kindOf(name string) xattrKind {
	switch {
	case name == "user.", name == "security.":
		return xattrBare
	case strings.HasPrefix(name, "user."):
		return xattrUser
	case strings.HasPrefix(name, "security."):
		return xattrSecurity
	}
	return xattrRefused // trusted., POSIX ACLs, and unknown ones
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
	case kind == xattrSecurity, virtual(metadata.Ino(h.NodeId)):
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

// put copies v to dest. It returns the length of v with ERANGE too: the kernel asks for
// it with an empty dest.
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
			list = append(append(list, name...), 0)
		}
		n, err = put(dest, list)
		return err
	})
	return n, code
}

// SetXAttr sets an extended attribute.
func (s *fsys) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	if kind := kindOf(name); kind != xattrUser && writable(metadata.Ino(in.NodeId)) == nil {
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
	if kind := kindOf(name); kind != xattrUser && writable(metadata.Ino(h.NodeId)) == nil {
		s.stats.calls[opRemovexattr].Add(1)
		switch kind {
		case xattrBare:
			return fuse.EINVAL
		case xattrSecurity:
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
