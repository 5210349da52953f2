package mounts

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// MaxRing is the number of directories above the current one that GNU find and du keep
// open. A walk that goes deeper returns by "..", which must lead to the directory from
// which it came.
const MaxRing = 4

// directories finds the processes that use directories of a dataset.
type directories struct {
	dev     string // of the filesystem, major:minor
	dataset metadata.DatasetID
	root    metadata.Ino // what the kernel calls the root, where that is not its inode
	deep    bool         // the dataset may have directories more than MaxRing levels deep
	proc    proc
	last    string // the process that the last look found, which the next one visits first
}

// place is a directory of a mount.
type place struct {
	mount string
	ino   metadata.Ino
}

// have reports whether an inode of the filesystem is a directory of the dataset.
func (d *directories) have(ino metadata.Ino) bool {
	return ino == d.root || ino.Sealed() && ino.Dataset() == d.dataset && ino.Part() == metadata.DirPart
}

// isRoot reports whether a directory of the dataset is its top one.
func (d *directories) isRoot(ino metadata.Ino) bool {
	return ino == d.root || ino == metadata.SealedIno(d.dataset, metadata.DirPart, 0)
}

// busy reports whether a process has a directory of the dataset open, or, if the dataset is
// deep, works in its top directory: a walk that starts there would return to another one.
// It asks nothing but /proc. A process that it may not be able to judge counts as busy.
// stop is called between processes; if it returns true, the dataset is busy.
func (d *directories) busy(stop func() bool) bool {
	all, err := d.processes()
	if err != nil {
		return true
	}
	ids, err := d.mounts(all)
	if err != nil {
		return true
	}
	for _, p := range all {
		used := d.deep && d.worksAtRoot(p, ids)
		if !used {
			used, err = d.openIn(p, ids)
		}
		if used {
			d.last = p
		}
		if used || stop() || err != nil && !elsewhere(err) {
			return true
		}
	}
	return false
}

// processes lists the directories of all processes in /proc, with the last user first.
func (d *directories) processes() ([]string, error) {
	names, err := d.proc.list("/proc")
	var all []string
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		all = append(all, filepath.Join("/proc", name))
		if n := len(all) - 1; all[n] == d.last {
			all[0], all[n] = all[n], all[0]
		}
	}
	return all, err
}

// elsewhere reports whether a process or a descriptor has gone meanwhile, or belongs to a
// process outside of our container, which root may not inspect.
func elsewhere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrPermission)
}

// mounts returns the IDs of the filesystem's mounts in the namespaces of all processes. A
// process can have a directory open that is mounted in another namespace.
func (d *directories) mounts(procs []string) (map[string]bool, error) {
	seen, ids := make(map[string]bool), make(map[string]bool)
	for _, p := range procs {
		ns, err := d.proc.link(p + "/ns/mnt")
		if err != nil && !elsewhere(err) {
			return nil, err
		}
		if err != nil || seen[ns] {
			continue
		}
		b, err := d.proc.read(p + "/mountinfo")
		if err != nil && !elsewhere(err) {
			return nil, err
		}
		seen[ns] = err == nil
		for _, m := range parse(string(b)) {
			if m.Dev == d.dev {
				ids[m.ID] = true
			}
		}
	}
	return ids, nil
}

// worksAtRoot reports whether the working or root directory of a process is the dataset's
// top directory.
func (d *directories) worksAtRoot(p string, ids map[string]bool) bool {
	for _, link := range []string{"/cwd", "/root"} {
		at, err := d.proc.place(p + link)
		if err != nil && !elsewhere(err) || err == nil && ids[at.mount] && d.isRoot(at.ino) {
			return true
		}
	}
	return false
}

// maxRelists bounds how often the descriptors of a process are listed again because they
// changed meanwhile: a walk always has one directory open, though not the same. After
// maxAsked descriptors two lists suffice, else a process that keeps opening files would
// never be finished.
const (
	maxRelists = 20
	maxAsked   = 4000
)

// openIn reports whether a process has a directory of the dataset open. The cheap checks
// come first: a writable descriptor is no directory, a name that is no path neither, and a
// descriptor is asked for its place again only if its name has changed.
func (d *directories) openIn(p string, ids map[string]bool) (bool, error) {
	dir := p + "/fdinfo"
	fds, err := d.proc.list(dir)
	if err != nil {
		return false, err
	}
	called := make(map[string]string) // names of the descriptors that have been looked at
	for lists, asked := 0, 0; lists < maxRelists && (lists < 2 || asked < maxAsked); lists++ {
		for _, fd := range fds {
			link := p + "/fd/" + fd
			if writes, err := d.proc.writes(link); err == nil && writes {
				continue
			}
			name, err := d.proc.link(link)
			if err == nil && (!filepath.IsAbs(name) || called[fd] == name) {
				continue
			}
			b, err := d.proc.read(filepath.Join(dir, fd))
			if err != nil && !elsewhere(err) {
				return false, err
			}
			if at := descriptor(b); ids[at.mount] && d.have(at.ino) {
				return true, nil
			}
			called[fd] = name
		}
		again, err := d.proc.list(dir)
		if err != nil || slices.Equal(fds, again) {
			return false, err
		}
		asked += len(fds)
		fds = again
	}
	return false, nil
}
