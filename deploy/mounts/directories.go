package mounts

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// directories is those of a dataset, as mounts of one filesystem show them.
type directories struct {
	dev     string // of the filesystem, major:minor
	dataset metadata.DatasetID
	root    metadata.Ino // what the kernel calls the root, where that is not its inode
	deep    bool         // the dataset may have directories deeper than MaxRing
	proc    proc
	now     func() time.Time
	last    string          // the process that had one open when they were looked for last
	stays   map[string]stay // of processes, by number and start, when they were looked for last
}

// MaxRing is how many levels below the dataset's directory who walks from there (GNU
// find, du) never needs "..": he keeps so many of the directories above him open. Who
// walks deeper goes back to where he began by "..", and if something was mounted upon
// that since, he finds another directory and ends with ENOENT.
const MaxRing = 4

// restTime is how long a process has to have the same working directory to rest.
const restTime = 10 * time.Second

// use is what processes do in the directories.
type use int

const (
	unused use = iota // nobody is there
	rested            // who is there only rests; see the package comment
	busy              // somebody may walk there
)

// place is a directory of a mount.
type place struct {
	mount string
	ino   metadata.Ino
}

// stay is how long a process is where it is.
type stay struct {
	at    place
	since time.Time
}

// have reports whether an inode of the filesystem is one of them.
func (d *directories) have(ino metadata.Ino) bool {
	return ino == d.root || ino.Sealed() && ino.Dataset() == d.dataset && ino.Part() == metadata.DirPart
}

// isRoot reports whether one of them is the dataset's own.
func (d *directories) isRoot(ino metadata.Ino) bool {
	return ino == d.root || ino == metadata.SealedIno(d.dataset, metadata.DirPart, 0)
}

// look is what the processes of this machine do there: who has a directory open, as his
// working directory or as his root. What was open and is on its way through a socket
// is not seen. No filesystem is asked for anything but /proc, and that for no more than
// it takes: first where each process is, which is little, then what it has open, and
// nothing more once somebody is found to be busy. He is looked at first the next time.
// stop is asked now and then; it says that somebody is.
func (d *directories) look(stop func() bool) (use, error) {
	all, err := d.processes()
	if err != nil {
		return busy, err
	}
	ids, err := d.mounts(all)
	if err != nil {
		return busy, err
	}
	u, err := d.workIn(all, ids)
	if err != nil || u == busy {
		return busy, err
	}
	for _, p := range all {
		used, err := d.openIn(p, ids)
		if used {
			d.last = p
		}
		if used || stop() || err != nil && !elsewhere(err) {
			return busy, err
		}
	}
	return u, nil
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

// workIn looks at where processes are. Those rest that are where one of them has been
// since restTime: who was started by it is there as well.
func (d *directories) workIn(procs []string, ids map[string]bool) (use, error) {
	stays, now := make(map[string]stay), d.now()
	rest := make(map[place]bool)
	for _, p := range procs {
		at, jailed, err := d.worksIn(p, ids)
		if jailed || err != nil && !elsewhere(err) {
			return busy, err
		}
		if at == (place{}) {
			continue
		}
		id, s, err := d.stay(p, stay{at, now})
		if err != nil && !elsewhere(err) {
			return busy, err
		}
		if err == nil {
			stays[id] = s
		}
	}
	d.stays = stays
	for _, s := range stays {
		if now.Sub(s.since) >= restTime && !(d.deep && d.isRoot(s.at.ino)) {
			rest[s.at] = true
		}
	}
	u := unused
	for _, s := range stays {
		if u = rested; !rest[s.at] {
			return busy, nil
		}
	}
	return u, nil
}

// worksIn is the directory in which a process works, if it is one of them, and whether
// its root is one.
func (d *directories) worksIn(p string, ids map[string]bool) (at place, jailed bool, err error) {
	if at, err = d.proc.place(p + "/cwd"); err != nil {
		return place{}, false, err
	}
	root, err := d.proc.place(p + "/root")
	if !ids[at.mount] || !d.have(at.ino) {
		at = place{}
	}
	return at, err == nil && ids[root.mount] && d.have(root.ino), err
}

// stay is where a process was, and since when, if it is there still.
func (d *directories) stay(p string, now stay) (id string, s stay, err error) {
	b, err := d.proc.read(p + "/stat")
	if err != nil {
		return "", now, err
	}
	_, rest, _ := strings.Cut(string(b[max(bytes.LastIndexByte(b, ')'), 0):]), " ")
	if f := strings.Fields(rest); len(f) > startField {
		id = p + " " + f[startField]
	}
	if was, ok := d.stays[id]; ok && was.at == now.at {
		now.since = was.since
	}
	return id, now, nil
}

// startField is where /proc/PID/stat has when the process began, behind its name.
const startField = 22 - 3

// maxLooks is how often the descriptors of a process are looked at that become others
// meanwhile, and maxAsked after how many that are asked for it ends sooner, but not before they
// were looked at twice. Who walks a tree has one of a directory at all times, though not the same,
// and does not escape that often; who opens files all the time would never be done.
const (
	maxLooks = 20
	maxAsked = 4000
)

// openIn reports whether a process has a directory open. Whether a descriptor can be
// written by is least to ask for, and none of a directory can; what it is called
// is little. Where it is, is asked for only if it may be a directory, and
// again only if it is called otherwise. A daemon has a thousand files open that it writes.
func (d *directories) openIn(p string, ids map[string]bool) (bool, error) {
	dir := p + "/fdinfo"
	fds, err := d.proc.list(dir)
	if err != nil {
		return false, err
	}
	called := make(map[string]string) // the descriptors that have been looked at
	for looks, asked := 0, 0; looks < maxLooks && (looks < 2 || asked < maxAsked); looks++ {
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
