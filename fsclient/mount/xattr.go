package mount

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// The extended attributes that a file has, to be read only. They are not
// listed, so that nobody tries to copy them.
const (
	xattrNode   = "user.bivouac.node"   // the nodes that hold the file's data
	xattrLayout = "user.bivouac.layout" // how it is spread over them
)

// GetXAttr reads one of ours; there are no others.
func (s *fsys) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (n uint32, code fuse.Status) {
	s.stats.calls[opGetxattr].Add(1)
	if strings.HasPrefix(name, "system.posix_acl_") || strings.HasPrefix(name, "trusted.") {
		return 0, notSupported
	}
	if name != xattrNode && name != xattrLayout || virtual(metadata.Ino(h.NodeId)) {
		return 0, fuse.ENODATA
	}
	ctx := newRequest(cancel)
	defer ctx.end()
	v, err := s.xattr(ctx, metadata.Ino(h.NodeId), name)
	if err != nil {
		return 0, s.failed(opGetxattr, h.NodeId, held(err))
	}
	if len(v) > len(dest) {
		return uint32(len(v)), fuse.ERANGE
	}
	return uint32(copy(dest, v)), fuse.OK
}

func (s *fsys) xattr(ctx context.Context, ino metadata.Ino, name string) (string, error) {
	a, err := s.client.Getattr(ctx, ino)
	if err != nil {
		return "", err
	}
	if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return "", syscall.ENODATA
	}
	if name == xattrLayout {
		kind := "stripe"
		if a.Layout.Kind == metadata.Local {
			kind = "local"
		}
		return fmt.Sprintf("%s chunk=%d width=%d epoch=%d", kind, a.Layout.Chunk(), a.Layout.Width, a.Layout.Epoch), nil
	}
	hosts, err := s.client.Hosts(ctx, a)
	return strings.Join(hosts, ","), err
}

// ListXAttr lists nothing.
func (s *fsys) ListXAttr(<-chan struct{}, *fuse.InHeader, []byte) (uint32, fuse.Status) {
	s.stats.calls[opListxattr].Add(1)
	return 0, fuse.OK
}

// SetXAttr is refused.
func (s *fsys) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, _ string, _ []byte) fuse.Status {
	s.stats.calls[opSetxattr].Add(1)
	if writable(metadata.Ino(in.NodeId)) != nil {
		return fuse.EROFS
	}
	return notSupported
}

// RemoveXAttr is refused.
func (s *fsys) RemoveXAttr(_ <-chan struct{}, h *fuse.InHeader, _ string) fuse.Status {
	s.stats.calls[opRemovexattr].Add(1)
	if writable(metadata.Ino(h.NodeId)) != nil {
		return fuse.EROFS
	}
	return fuse.ENODATA
}
