package mount

import (
	"context"
	"fmt"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// OpenDir opens a directory.
func (s *fsys) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return s.call(opOpendir, cancel, &in.InHeader, func(context.Context) error {
		out.Fh = s.handles.add(&handle{dir: cursorOf(s, metadata.Ino(in.NodeId))})
		return nil
	})
}

// cursorOf returns a cursor of any directory.
func cursorOf(s *fsys, dir metadata.Ino) *cursor {
	if !virtual(dir) {
		return newCursor(s.client.List(dir).Read)
	}
	return newCursor(func(_ context.Context, after string, _ int) ([]metadata.Entry, bool, error) {
		if after != "" {
			return nil, true, nil
		}
		es, err := s.virtualEntries(dir)
		return es, true, err
	})
}

// ReadDir lists names. A kernel that has READDIRPLUS asks for that instead.
func (s *fsys) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return s.call(opReaddir, cancel, &in.InHeader, func(ctx context.Context) error {
		return s.list(ctx, in, func(e *metadata.Entry, off uint64) bool {
			return out.AddDirEntry(dirEntry(e, off))
		})
	})
}

// ReadDirPlus lists names with attributes where the kernel may cache them, that is, in the sealed realm. In the live
// realm the kernel may not cache names: in measurements, ls -l and find -size asked for each entry as often as without
// READDIRPLUS; the client answers from its leases. READDIRPLUS_AUTO, with which the kernel chooses, is not used: find
// reads names before it looks at any, so it would get names only, and then ask for each entry of a dataset.
func (s *fsys) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return s.call(opReaddirplus, cancel, &in.InHeader, func(ctx context.Context) error {
		return s.list(ctx, in, func(e *metadata.Entry, off uint64) bool { return addPlus(out, e, off) })
	})
}

// addPlus adds an entry with its attributes; it returns false if there is no room.
func addPlus(out *fuse.DirEntryList, e *metadata.Entry, off uint64) bool {
	eo := out.AddDirLookupEntry(dirEntry(e, off))
	if eo == nil {
		return false
	}
	if e.Attr != nil && e.Ino.Sealed() {
		fillEntry(eo, e.Attr)
	}
	return true
}

func dirEntry(e *metadata.Entry, off uint64) fuse.DirEntry {
	return fuse.DirEntry{Name: e.Name, Ino: uint64(e.Ino), Mode: e.Mode, Off: off}
}

// list adds entries of an open directory.
func (s *fsys) list(ctx context.Context, in *fuse.ReadIn, add func(e *metadata.Entry, off uint64) bool) error {
	h, err := s.handles.get(in.Fh)
	if err != nil && in.Fh < s.takeover.table.FirstHandle() { // of an earlier daemon
		h, err = s.handles.openedDir(in.Fh, cursorOf(s, metadata.Ino(in.NodeId))), nil
	}
	if err != nil {
		return err
	}
	if h.dir == nil {
		return fmt.Errorf("inode %v: %w", metadata.Ino(in.NodeId), syscall.ENOTDIR)
	}
	return listFrom(ctx, h.dir, in, in.Offset == 0, add)
}

// listFrom adds entries from position in.Offset on until the buffer of add is full. The kernel continues there; only an
// empty answer marks the end. With fresh the directory is read again.
func listFrom(ctx context.Context, dir *cursor, in *fuse.ReadIn, fresh bool, add func(e *metadata.Entry, off uint64) bool) error {
	off := in.Offset
	dots := []metadata.Entry{
		{Name: ".", Ino: metadata.Ino(in.NodeId), Mode: syscall.S_IFDIR},
		{Name: "..", Mode: syscall.S_IFDIR}, // its number is not used
	}
	for ; off < uint64(len(dots)); off++ {
		if !add(&dots[off], off+1) {
			return nil
		}
	}
	es, err := dir.at(ctx, int(off)-len(dots), fresh)
	if err != nil {
		return err
	}
	for i := range es {
		off++
		if !add(&es[i], off) {
			break
		}
	}
	return nil
}

// ReleaseDir closes a directory.
func (s *fsys) ReleaseDir(in *fuse.ReleaseIn) {
	s.stats.calls[opReleasedir].Add(1)
	s.handles.remove(in.Fh)
}

// FsyncDir does nothing: a directory change is acknowledged only after its home has stored it.
func (s *fsys) FsyncDir(<-chan struct{}, *fuse.FsyncIn) fuse.Status {
	s.stats.calls[opFsyncdir].Add(1)
	return fuse.OK
}
