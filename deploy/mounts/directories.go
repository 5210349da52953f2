package mounts

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// directories is those of a dataset, as mounts of one filesystem show them.
type directories struct {
	dev     string // of the filesystem, major:minor
	dataset metadata.DatasetID
	root    metadata.Ino // what the kernel calls the root, where that is not its inode
	proc    proc
	last    string // the process that had one open when they were looked for last
}

// have reports whether an inode of the filesystem is one of them.
func (d *directories) have(ino metadata.Ino) bool {
	return ino == d.root || ino.Sealed() && ino.Dataset() == d.dataset && ino.Part() == metadata.DirPart
}

// used reports whether a process of this machine has one of them open, as its
// working directory or as its root. What was open and is on its way through a socket
// is not seen. No filesystem is asked for anything but /proc, and that for no more than
// it takes: first where each process is, which is little, then what it has open, and
// nothing more once a user is found. That one is looked at first the next time.
func (d *directories) used() (bool, error) {
	all, err := d.processes()
	if err != nil {
		return false, err
	}
	ids, err := d.mounts(all)
	if err != nil {
		return false, err
	}
	for _, uses := range []func(string, map[string]bool) (bool, error){d.worksIn, d.openIn} {
		for _, p := range all {
			used, err := uses(p, ids)
			if used {
				d.last = p
			}
			if used || err != nil && !elsewhere(err) {
				return used, err
			}
		}
	}
	return false, nil
}

// processes is the directories of all in /proc, the last user's before the others.
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

// elsewhere reports whether a process, or a descriptor of it, has gone meanwhile, or
// is none that root may look at: then it is outside of the container in which we are.
func elsewhere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrPermission)
}

// mounts is the numbers of the filesystem's mounts in the namespaces of processes. A
// process can have a directory open that is in another's.
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

// worksIn looks at where a process is.
func (d *directories) worksIn(p string, ids map[string]bool) (bool, error) {
	for _, link := range []string{"/cwd", "/root"} {
		id, ino, err := d.proc.place(p + link)
		if err != nil || ids[id] && d.have(ino) {
			return err == nil, err
		}
	}
	return false, nil
}

// maxLooks is how often the descriptors of a process are looked at that become others
// meanwhile, before it is taken for one that uses a directory.
const maxLooks = 20

// openIn looks at the descriptors of a process. Who walks a tree has one of a
// directory at all times, but not the same.
func (d *directories) openIn(p string, ids map[string]bool) (bool, error) {
	dir := p + "/fdinfo"
	for range maxLooks {
		fds, err := d.proc.list(dir)
		if err != nil {
			return false, err
		}
		for _, fd := range fds {
			b, err := d.proc.read(filepath.Join(dir, fd))
			if err != nil && !elsewhere(err) {
				return false, err
			}
			if id, ino := descriptor(b); ids[id] && d.have(ino) {
				return true, nil
			}
		}
		if again, err := d.proc.list(dir); err != nil || slices.Equal(fds, again) {
			return false, err
		}
	}
	return true, nil
}
