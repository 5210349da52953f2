package mount

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// checkNames checks a change of names: live directories, names that are not too long.
func checkNames(names []string, dirs ...metadata.Ino) error {
	if err := writable(dirs...); err != nil {
		return err
	}
	for _, n := range names {
		if len(n) > metadata.MaxName {
			return syscall.ENAMETOOLONG
		}
	}
	return nil
}

// Mknod makes a file, fifo, socket or device.
func (s *fsys) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.call(opMknod, cancel, &in.InHeader, func(ctx context.Context) error {
		if r := traced(ctx); r != nil {
			r.what = name
		}
		n := metadata.New{Mode: in.Mode, UID: in.Uid, GID: in.Gid, Rdev: in.Rdev}
		return s.create(ctx, metadata.Ino(in.NodeId), name, n, out)
	})
}

// Symlink makes a symbolic link.
func (s *fsys) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return s.call(opSymlink, cancel, h, func(ctx context.Context) error {
		if r := traced(ctx); r != nil {
			r.what = name + " -> " + target
		}
		n := metadata.New{Mode: syscall.S_IFLNK | 0o777, UID: h.Uid, GID: h.Gid, Target: target}
		return s.create(ctx, metadata.Ino(h.NodeId), name, n, out)
	})
}

func (s *fsys) create(ctx context.Context, dir metadata.Ino, name string, n metadata.New, out *fuse.EntryOut) error {
	if err := checkNames([]string{name}, dir); err != nil {
		return err
	}
	a, err := s.client.Create(ctx, dir, name, n)
	if err != nil {
		return err
	}
	fillEntry(out, &a)
	return nil
}

// Mkdir makes a directory.
func (s *fsys) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.call(opMkdir, cancel, &in.InHeader, func(ctx context.Context) error {
		if r := traced(ctx); r != nil {
			r.what = name
		}
		dir := metadata.Ino(in.NodeId)
		if err := checkNames([]string{name}, dir); err != nil {
			return err
		}
		n := metadata.New{Mode: syscall.S_IFDIR | in.Mode&0o7777, UID: in.Uid, GID: in.Gid}
		a, err := s.client.Mkdir(ctx, dir, name, n)
		if err != nil {
			return err
		}
		fillEntry(out, &a)
		return nil
	})
}

// Unlink removes a name that is not of a directory.
func (s *fsys) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return s.call(opUnlink, cancel, h, func(ctx context.Context) error {
		if r := traced(ctx); r != nil {
			r.what = name
		}
		dir := metadata.Ino(h.NodeId)
		if err := checkNames([]string{name}, dir); err != nil {
			return err
		}
		_, err := s.client.Unlink(ctx, dir, name)
		return err
	})
}

// Rmdir removes an empty directory.
func (s *fsys) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return s.call(opRmdir, cancel, h, func(ctx context.Context) error {
		if r := traced(ctx); r != nil {
			r.what = name
		}
		dir := metadata.Ino(h.NodeId)
		if err := checkNames([]string{name}, dir); err != nil {
			return err
		}
		return s.client.Rmdir(ctx, dir, name)
	})
}

// Rename is renameat2.
func (s *fsys) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	return s.call(opRename, cancel, &in.InHeader, func(ctx context.Context) error {
		if r := traced(ctx); r != nil {
			r.what = oldName + " -> " + newName
		}
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

// Link makes one more name of a file.
func (s *fsys) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.call(opLink, cancel, &in.InHeader, func(ctx context.Context) error {
		if r := traced(ctx); r != nil {
			r.what = name
		}
		dir := metadata.Ino(in.NodeId)
		if err := checkNames([]string{name}, dir); err != nil {
			return err
		}
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

// Readlink is the target of a symbolic link.
func (s *fsys) Readlink(cancel <-chan struct{}, h *fuse.InHeader) (out []byte, code fuse.Status) {
	code = s.call(opReadlink, cancel, h, func(ctx context.Context) error {
		target, err := s.client.Readlink(ctx, metadata.Ino(h.NodeId))
		out = []byte(target)
		return stale(err)
	})
	return out, code
}
