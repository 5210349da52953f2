package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// directories is those of a dataset, as mounts of one filesystem show them.
type directories struct {
	dev     string // of the filesystem, major:minor
	dataset metadata.DatasetID
	root    metadata.Ino // what the kernel calls the root, where that is not its inode
}

// have reports whether an inode of the filesystem is one of them.
func (d *directories) have(ino metadata.Ino) bool {
	return ino == d.root || ino.Sealed() && ino.Dataset() == d.dataset && ino.Part() == metadata.DirPart
}

// used reports whether a process of this machine has one of them open, as its
// working directory or as its root. What was open and is on its way through a socket
// is not seen. No filesystem is asked for anything but /proc.
func (d *directories) used() (bool, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return false, err
	}
	ids, err := d.mounts(all)
	if err != nil {
		return false, err
	}
	for _, proc := range all {
		if used, err := d.usedBy(proc, ids); used || err != nil && !elsewhere(err) {
			return used, err
		}
	}
	return false, nil
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
	for _, proc := range procs {
		ns, err := os.Readlink(proc + "/ns/mnt")
		if err != nil && !elsewhere(err) {
			return nil, err
		}
		if err != nil || seen[ns] {
			continue
		}
		b, err := os.ReadFile(proc + "/mountinfo")
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

// usedBy looks at one process.
func (d *directories) usedBy(proc string, ids map[string]bool) (bool, error) {
	for _, link := range []string{"cwd", "root"} {
		fd, err := unix.Open(filepath.Join(proc, link), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return false, fmt.Errorf("%s of %s: %w", link, proc, err)
		}
		id, ino, err := descriptor("/proc/self/fdinfo/" + strconv.Itoa(fd))
		_ = unix.Close(fd) // nothing was done with it
		if err != nil || ids[id] && d.have(ino) {
			return err == nil, err
		}
	}
	return d.openIn(proc, ids)
}

// maxLooks is how often the descriptors of a process are looked at that become others
// meanwhile, before it is taken for one that uses a directory.
const maxLooks = 20

// openIn looks at the descriptors of a process. Who walks a tree has one of a
// directory at all times, but not the same.
func (d *directories) openIn(proc string, ids map[string]bool) (bool, error) {
	for range maxLooks {
		fds, err := filepath.Glob(proc + "/fdinfo/*")
		if err != nil {
			return false, err
		}
		for _, f := range fds {
			id, ino, err := descriptor(f)
			if err != nil && !elsewhere(err) {
				return false, err
			}
			if ids[id] && d.have(ino) {
				return true, nil
			}
		}
		if again, err := filepath.Glob(proc + "/fdinfo/*"); err != nil || slices.Equal(fds, again) {
			return false, err
		}
	}
	return true, nil
}

// descriptor is the mount and the inode of an open file, as its fdinfo says them.
func descriptor(fdinfo string) (mount string, ino metadata.Ino, err error) {
	b, err := os.ReadFile(fdinfo)
	for line := range strings.Lines(string(b)) {
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "mnt_id":
			mount = strings.TrimSpace(value)
		case "ino":
			n, _ := strconv.ParseUint(strings.TrimSpace(value), 10, 64) // 0 is no directory
			ino = metadata.Ino(n)
		}
	}
	return mount, ino, err
}
