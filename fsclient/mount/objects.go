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

// Objects answers for the data of the files of a dataset, by inode number, on dev:
// that is a descriptor of /dev/fuse, mounted read-only as the lowest layer of the
// dataset's kernel view. There is nothing to list. See Kernel views in the package
// comment; for the rest it is like Cover.
//
//	/ab/<ino>   ab is the last byte of the number, in hex
//	/f/<ino>    the same file
func (m *Mount) Objects(dev *os.File, ds metadata.DatasetID) (*Cover, error) {
	root := metadata.SealedIno(ds, metadata.DirPart, 0)
	fs := &objectsFS{coverFS: coverFS{RawFileSystem: fuse.NewDefaultRawFileSystem(), s: m.fs, root: root}}
	return m.adopt(dev, fs, &fs.coverFS)
}

// The node ids of the directories: the root's, that of f, and from objectsDir on
// those of the last bytes. No number of a dataset's inode is among them.
const (
	elsewhereDir = fuse.FUSE_ROOT_ID + 1
	objectsDir   = elsewhereDir + 1
	objectsEnd   = objectsDir + 256
)

// objectsFS is the files of a dataset by number. They belong to the job's user, who
// alone can read them here: whether somebody may is decided above.
type objectsFS struct {
	coverFS
}

// Lookup finds a directory or an inode.
func (o *objectsFS) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return o.s.call(opLookup, cancel, h, func(ctx context.Context) error {
		if r := traced(ctx); r != nil {
			r.what = name
		}
		if h.NodeId == fuse.FUSE_ROOT_ID {
			id, ok := objectsNode(name)
			if ok {
				o.fillDir(id, &out.Attr)
				out.NodeId = id
			}
			out.SetEntryTimeout(forEver) // also of what there is not
			out.SetAttrTimeout(forEver)
			return nil
		}
		ino, err := strconv.ParseUint(name, 16, 64)
		if err != nil || len(name) != 16 || h.NodeId >= objectsEnd || h.NodeId >= objectsDir && ino&0xff != h.NodeId-objectsDir {
			return fmt.Errorf("object %.32q: %w", name, syscall.ENOENT)
		}
		a, err := o.attr(ctx, metadata.Ino(ino))
		if err == nil {
			fillEntry(out, &a)
		}
		return err
	})
}

// objectsNode is the node of a directory's name.
func objectsNode(name string) (uint64, bool) {
	if name == "f" {
		return elsewhereDir, true
	}
	b, err := strconv.ParseUint(name, 16, 8)
	return objectsDir + b, err == nil && len(name) == 2
}

// attr is what a file looks like here.
func (o *objectsFS) attr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	if !ino.Sealed() || ino.Dataset() != o.root.Dataset() {
		return metadata.Attr{}, fmt.Errorf("inode %v, not of dataset %d: %w", ino, o.root.Dataset(), syscall.ENOENT)
	}
	a, err := o.s.client.Getattr(ctx, ino)
	if err != nil {
		return a, held(err)
	}
	if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return a, fmt.Errorf("inode %v is no file: %w", ino, syscall.ENOENT)
	}
	a.Mode, a.UID, a.GID = syscall.S_IFREG|0o400, o.s.cfg.UID, o.s.cfg.GID
	return a, nil
}

// fillDir is what the directories look like.
func (o *objectsFS) fillDir(id uint64, out *fuse.Attr) {
	fillAttr(out, &metadata.Attr{Ino: metadata.Ino(id), Mode: syscall.S_IFDIR | 0o500, Nlink: 2, UID: o.s.cfg.UID, GID: o.s.cfg.GID})
}

// GetAttr is stat.
func (o *objectsFS) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return o.s.call(opGetattr, cancel, &in.InHeader, func(ctx context.Context) error {
		if in.NodeId < objectsEnd {
			out.SetTimeout(forEver)
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
