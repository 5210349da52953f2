package mount

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// Kernel views: over a dataset of small files the node can mount a kernel view instead of a cover, also before programs
// see the dataset (package mounts). It is a read-only overlayfs: an image of the tree, the whole objects of this node,
// and below those a connection of the mount (Mount.Objects) that has every file of the dataset under its number. The
// overlay looks for an object at the first open of its file. The kernel alone reads files that are whole here by then;
// it reads all others through the connection, as through a cover, until it evicts their inodes. Differences from a
// cover:
//
//	st_dev, st_ino  are the view's own, and change when it is made again: a tree walk sees no
//	                change, two lookups of one path may
//	st_atime, ctime are the st_mtime
//	st_blocks       as if the file had no holes
//	xattr           a file has only user.bivouac.node, as of when the view was made, and
//	                lists it; directories have none
//	requests        reads by the kernel alone are not counted
//	node lost       files of this node are still read, also while its daemon is away
//	verify          repairs an object in place, with bytes that it has compared; if it cannot, the view is
//	                detached at once, also under processes that use it, and made again without the file
//	                (Mount.Uncover)
//	job's end       open objects of this node are read until they are closed

// Objects returns a server for the data of the files of a dataset by inode number. dev is a descriptor of /dev/fuse,
// mounted read-only as the lowest layer of the dataset's kernel view. Its directories list nothing. next is as for
// Cover: the overlay above reads through the page cache of this connection.
//
//	/ab/<ino>   ab is the last byte of the number, in hex
func (m *Mount) Objects(dev *os.File, ds metadata.DatasetID, next Prefetch) (*Cover, error) {
	root := metadata.SealedIno(ds, metadata.DirPart, 0)
	fs := &objectsFS{coverFS: coverFS{RawFileSystem: fuse.NewDefaultRawFileSystem(), s: m.fs, root: root, next: next, pages: pages{s: m.fs, direct: true}}}
	return m.adopt(dev, fs, &fs.coverFS)
}

// The node ids of the directories below the root. No inode of a dataset has one of these numbers.
const (
	objectsDir = fuse.FUSE_ROOT_ID + 1
	objectsEnd = objectsDir + 256
)

// objectsFS serves the files of a dataset by number. Only the job's user can read them here: the view above checks
// permissions.
type objectsFS struct {
	coverFS
}

// Lookup finds a directory or an inode.
func (o *objectsFS) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return o.s.call(opLookup, cancel, h, func(ctx context.Context) error {
		note(ctx, name)
		if h.NodeId == fuse.FUSE_ROOT_ID {
			id, ok := objectsNode(name)
			if ok {
				o.fillDir(id, &out.Attr)
				out.NodeId = id
			}
			out.SetEntryTimeout(forever) // negative entries, too
			out.SetAttrTimeout(forever)
			return nil
		}
		ino, err := strconv.ParseUint(name, 16, 64)
		if err != nil || len(name) != 16 || h.NodeId >= objectsEnd || ino&0xff != h.NodeId-objectsDir {
			return fmt.Errorf("object %.32q: %w", name, syscall.ENOENT)
		}
		a, err := o.attr(ctx, metadata.Ino(ino))
		if err == nil {
			fillEntry(out, &a)
		}
		return err
	})
}

// objectsNode returns the node id of a directory.
func objectsNode(name string) (uint64, bool) {
	b, err := strconv.ParseUint(name, 16, 8)
	return objectsDir + b, err == nil && len(name) == 2
}

// attr returns the attributes of a file of this dataset.
func (o *objectsFS) attr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	if !ino.Sealed() || ino.Dataset() != o.root.Dataset() {
		return metadata.Attr{}, fmt.Errorf("inode %v is not in dataset %d: %w", ino, o.root.Dataset(), syscall.ENOENT)
	}
	a, err := o.s.client.Getattr(ctx, ino)
	if err != nil {
		return a, stale(err)
	}
	if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return a, fmt.Errorf("inode %v is not a regular file: %w", ino, syscall.ENOENT)
	}
	a.Mode, a.UID, a.GID = syscall.S_IFREG|0o400, o.s.cfg.UID, o.s.cfg.GID
	return a, nil
}

// fillDir fills in the attributes of a directory.
func (o *objectsFS) fillDir(id uint64, out *fuse.Attr) {
	fillAttr(out, &metadata.Attr{Ino: metadata.Ino(id), Mode: syscall.S_IFDIR | 0o500, Nlink: 2, UID: o.s.cfg.UID, GID: o.s.cfg.GID})
}

// GetAttr serves stat.
func (o *objectsFS) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return o.s.call(opGetattr, cancel, &in.InHeader, func(ctx context.Context) error {
		if in.NodeId < objectsEnd {
			out.SetTimeout(forever)
			o.fillDir(in.NodeId, &out.Attr)
			return nil
		}
		a, err := o.attr(ctx, metadata.Ino(in.NodeId))
		if err == nil {
			fillAttrOut(out, &a, 0)
		}
		return err
	})
}

// ReadDir lists nothing.
func (o *objectsFS) ReadDir(<-chan struct{}, *fuse.ReadIn, *fuse.DirEntryList) fuse.Status {
	return fuse.OK
}

// ReadDirPlus lists nothing.
func (o *objectsFS) ReadDirPlus(<-chan struct{}, *fuse.ReadIn, *fuse.DirEntryList) fuse.Status {
	return fuse.OK
}
