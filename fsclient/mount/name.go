package mount

import (
	"context"
	"slices"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// checkNames checks a change of names: directories must be live, and names not too long.
func checkNames(names []string, dirs ...metadata.Ino) error {
	if err := writable(dirs...); err != nil {
		return err
	}
	if slices.ContainsFunc(names, func(n string) bool { return len(n) > metadata.MaxName }) {
		return syscall.ENAMETOOLONG
	}
	return nil
}

// change serves a request that changes the name in its directory.
func (s *fsys) change(o op, cancel <-chan struct{}, h *fuse.InHeader, name string, fn func(ctx context.Context, dir metadata.Ino) error) fuse.Status {
	return s.call(o, cancel, h, func(ctx context.Context) error {
		note(ctx, name)
		dir := metadata.Ino(h.NodeId)
		if err := checkNames([]string{name}, dir); err != nil {
			return err
		}
		return fn(ctx, dir)
	})
}

// Mknod makes a file, fifo, socket or device.
func (s *fsys) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.change(opMknod, cancel, &in.InHeader, name, func(ctx context.Context, dir metadata.Ino) error {
		a, err := s.client.Create(ctx, dir, name, metadata.New{Mode: in.Mode, UID: in.Uid, GID: in.Gid, Rdev: in.Rdev})
		return entered(out, &a, err)
	})
}

// Symlink makes a symbolic link.
func (s *fsys) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return s.change(opSymlink, cancel, h, name, func(ctx context.Context, dir metadata.Ino) error {
		note(ctx, name+" -> "+target)
		a, err := s.client.Create(ctx, dir, name, metadata.New{Mode: syscall.S_IFLNK | 0o777, UID: h.Uid, GID: h.Gid, Target: target})
		return entered(out, &a, err)
	})
}

// entered fills in the answer for the new entry of an inode, unless the call failed.
func entered(out *fuse.EntryOut, a *metadata.Attr, err error) error {
	if err == nil {
		fillEntry(out, a)
	}
	return err
}

// Mkdir makes a directory.
func (s *fsys) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.change(opMkdir, cancel, &in.InHeader, name, func(ctx context.Context, dir metadata.Ino) error {
		a, err := s.client.Mkdir(ctx, dir, name, metadata.New{Mode: syscall.S_IFDIR | in.Mode&0o7777, UID: in.Uid, GID: in.Gid})
		return entered(out, &a, err)
	})
}

// Unlink removes a name that does not refer to a directory.
func (s *fsys) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return s.change(opUnlink, cancel, h, name, func(ctx context.Context, dir metadata.Ino) error {
		_, err := s.client.Unlink(ctx, dir, name)
		return err
	})
}

// Rmdir removes an empty directory.
func (s *fsys) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return s.change(opRmdir, cancel, h, name, func(ctx context.Context, dir metadata.Ino) error { return s.client.Rmdir(ctx, dir, name) })
}

// Rename serves renameat2.
func (s *fsys) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	return s.call(opRename, cancel, &in.InHeader, func(ctx context.Context) error {
		note(ctx, oldName+" -> "+newName)
		r := metadata.Rename{
			Dir: metadata.Ino(in.NodeId), Name: oldName,
			NewDir: metadata.Ino(in.Newdir), NewName: newName,
			Flags: metadata.RenameFlags(in.Flags),
		}
		if err := checkNames([]string{oldName, newName}, r.Dir, r.NewDir); err != nil {
			return err
		}
		_, err := s.client.Rename(ctx, r)
		return err
	})
}

// Link adds a name to a file.
func (s *fsys) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.change(opLink, cancel, &in.InHeader, name, func(ctx context.Context, dir metadata.Ino) error {
		ino := metadata.Ino(in.Oldnodeid)
		if virtual(ino) {
			return syscall.EXDEV
		}
		a, err := s.client.Link(ctx, ino, dir, name)
		if err != nil {
			return err
		}
		s.announce(&a)
		fillEntry(out, &a)
		return nil
	})
}

// Readlink returns the target of a symbolic link.
func (s *fsys) Readlink(cancel <-chan struct{}, h *fuse.InHeader) (out []byte, code fuse.Status) {
	code = s.call(opReadlink, cancel, h, func(ctx context.Context) error {
		target, err := s.client.Readlink(ctx, metadata.Ino(h.NodeId))
		out = []byte(target)
		return stale(err)
	})
	return out, code
}
