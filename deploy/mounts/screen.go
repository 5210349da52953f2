package mounts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// moveBeneath has move_mount(2) put a mount beneath the topmost one, instead of
// upon it. Linux 6.5 has it.
const moveBeneath = 0x200

const (
	// screenPause is how long a screen stays at first that is in use, and
	// maxScreenPause how long at most before it is looked at again.
	screenPause    = 50 * time.Millisecond
	maxScreenPause = 10 * time.Second
	// lookShare is how many times as long as a look nothing is done after it: all looks
	// of a screen take a fiftieth of a processor, however much there is to look at, up
	// to maxRest.
	lookShare = 49
	maxRest   = 2 * time.Minute
	// screenTime is how long a screen is left alone that is in use by files and who
	// rests.
	screenTime = 12 * time.Second
	// minUnused is how often in a row nobody has to be busy in a directory.
	minUnused = 2
)

// screen is a copy of the mount that is seen at a dataset's directory, upon
// which it lies, so that who is in one or the other finds the same. What is put
// beneath the screen is not seen before the screen is lifted. See the package
// comment.
type screen struct {
	data int    // descriptor of the directory data/
	name string // of the dataset in it
	id   uint64 // of the mount that is the screen
	dirs directories
	// hidden is a descriptor of what lies beneath the screen; -1 before.
	hidden int
	// unused counts how often in a row nobody was busy in a directory. Who walks may
	// escape one look, and nobody new gets below the screen.
	unused int
}

// canScreen reports whether the kernel can put a mount beneath another.
func canScreen() bool {
	err := unix.MoveMount(-1, "", -1, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveBeneath)
	return errors.Is(err, unix.EBADF) // it looks at the flags first
}

// screen is one for the dataset, which is not there yet.
func (c *Cover) screen() (*screen, error) {
	data, err := c.open("data", unix.RESOLVE_NO_XDEV)
	if err != nil {
		return nil, err
	}
	return &screen{data: data, name: c.Name, hidden: -1, dirs: directories{deep: true, proc: procfs{}, now: time.Now}}, nil
}

// hide puts a mount at the directory, with the screen over it.
func (s *screen) hide(m int) error {
	if err := s.put(); err != nil {
		return fmt.Errorf("a screen: %w", err)
	}
	seen, err := s.open()
	if err != nil {
		return err
	}
	defer unix.Close(seen)
	if !s.there() {
		return fmt.Errorf("the dataset has gone: %w", unix.ESTALE)
	}
	if s.hidden, err = unix.FcntlInt(uintptr(m), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return err
	}
	return unix.MoveMount(m, "", seen, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveBeneath)
}

// put puts the screen over what is seen.
func (s *screen) put() error {
	seen, err := s.open()
	if err != nil {
		return err
	}
	defer unix.Close(seen)
	if err := s.note(seen); err != nil {
		return err
	}
	s.id, err = putCopy(seen, seen)
	return err
}

// putCopy puts a copy of a mount upon another, and returns its number.
func putCopy(of, upon int) (id uint64, err error) {
	m, err := unix.OpenTree(of, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(m)
	// It would be in one peer group with what it is a copy of, and what is mounted
	// on one of them then be on both.
	if err := unix.MountSetattr(m, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return 0, err
	}
	if err := unix.MoveMount(m, "", upon, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return 0, err
	}
	return mountID(m, "")
}

// note takes note of which directories must not be in use. It may wait for an
// answer of the daemon's.
func (s *screen) note(seen int) error {
	var st unix.Statx_t
	if err := unix.Statx(seen, "", unix.AT_EMPTY_PATH, unix.STATX_INO, &st); err != nil {
		return err
	}
	at, err := placeOf(seen)
	s.dirs.dev, s.dirs.root = fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), at.ino
	s.dirs.dataset = metadata.Ino(st.Ino).Dataset()
	return err
}

// open opens what is seen at the directory now.
func (s *screen) open() (int, error) {
	return unix.Openat2(s.data, s.name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
}

func (s *screen) close() {
	_ = unix.Close(s.data) // nothing was done with it
	if s.hidden >= 0 {
		_ = unix.Close(s.hidden) // the mount stays
	}
}

// there reports whether the screen is what is seen.
func (s *screen) there() bool {
	id, err := mountID(s.data, s.name)
	return err == nil && id == s.id
}

// mountID is the mount that is seen at a path. No daemon is asked but for names.
func mountID(dir int, path string) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(dir, path, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err
}

// lift takes the screen away when nobody can notice, and reports whether it did: not
// if it has gone with the dataset, or if who wants the mount hangs up before.
func (s *screen) lift(talk int) bool {
	return lift(s, time.Now, func(pause time.Duration) (more bool) {
		fds := []unix.PollFd{{Fd: int32(talk), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(pause/time.Millisecond))
		return n == 0 && err == nil || errors.Is(err, unix.EINTR)
	})
}

// lifted is what lift takes away: a screen.
type lifted interface {
	there() bool
	try(force bool) bool
	nearly() bool // it takes one look more, if that finds nobody, either
}

// lift tries until it is done, and waits between the tries, in which almost all is
// looks, for longer each time, and as long as lookShare wants; wait reports whether to
// go on. The look that may be the last is not waited for so long: it is counted with
// the one before.
func lift(s lifted, now func() time.Time, wait func(time.Duration) (more bool)) bool {
	pause, first, looked := screenPause, now(), time.Duration(0)
	for s.there() {
		began := now()
		if s.try(began.Sub(first) >= screenTime) {
			return true
		}
		looked += now().Sub(began)
		rest := screenPause
		if !s.nearly() {
			rest = max(pause, min(lookShare*looked, maxRest))
			pause, looked = min(2*pause, maxScreenPause), 0
		}
		if !wait(rest) {
			return false
		}
	}
	return false
}

// nearly reports whether nobody was busy when that was looked for last, but not yet as
// often as minUnused.
func (s *screen) nearly() bool { return 0 < s.unused && s.unused < minUnused }

// try takes the screen away if no process is busy in a directory of the dataset. The
// kernel sees to it that nobody has entered the screen itself, to read a file
// either; with force that may be.
func (s *screen) try(force bool) bool {
	if s.unused < minUnused {
		if s.look(watch{-1}) == busy {
			s.unused = 0
		} else {
			s.unused++
		}
	}
	if s.unused < minUnused {
		return false
	}
	err := unix.Unmount(s.path(), unix.UMOUNT_NOFOLLOW)
	if !force || !errors.Is(err, unix.EBUSY) {
		return err == nil
	}
	return s.force()
}

// force is try when somebody has entered the screen. If those have only files open, it
// is detached, and goes with the last of these files. Who rests in it would have no
// path any more then; so it stays, below a copy of what lies beneath it.
func (s *screen) force() bool {
	w, err := watchDir(s.path())
	if err != nil {
		return false
	}
	defer w.close()
	most := unused
	for range minUnused {
		most = max(most, s.look(w))
	}
	if most == busy || w.opened() {
		return false
	}
	if most == unused {
		return unix.Unmount(s.path(), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH) == nil
	}
	seen, err := s.open()
	if err != nil {
		return false
	}
	defer unix.Close(seen)
	if id, err := mountID(seen, ""); err != nil || id != s.id {
		return false
	}
	_, err = putCopy(s.hidden, seen)
	return err == nil
}

// path is where the screen is.
func (s *screen) path() string { return fmt.Sprintf("/proc/self/fd/%d/%s", s.data, s.name) }

// look is what processes do, or may do, in the directories of the dataset.
func (s *screen) look(w watch) use {
	u, err := s.dirs.look(w.opened)
	if err != nil {
		return busy
	}
	return u
}

// watch tells of what is opened of a directory: itself, and what is in it. It has to be
// asked now and then, since the kernel does not remember more than so much.
type watch struct{ fd int }

func watchDir(dir string) (watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return watch{}, err
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_OPEN|unix.IN_ONLYDIR); err != nil {
		return watch{}, errors.Join(err, unix.Close(fd))
	}
	return watch{fd}, nil
}

func (w watch) close() { _ = unix.Close(w.fd) } // nothing was done with it

// opened reports whether a directory was opened, or more than can be told.
func (w watch) opened() bool {
	if w.fd < 0 {
		return false // nothing is watched
	}
	b := make([]byte, 64<<10)
	for {
		n, err := unix.Read(w.fd, b)
		if err != nil {
			return !errors.Is(err, unix.EAGAIN)
		}
		for e := b[:n]; len(e) >= unix.SizeofInotifyEvent; {
			if binary.NativeEndian.Uint32(e[4:])&(unix.IN_ISDIR|unix.IN_Q_OVERFLOW) != 0 {
				return true
			}
			name := int(binary.NativeEndian.Uint32(e[12:]))
			e = e[min(len(e), unix.SizeofInotifyEvent+name):]
		}
	}
}
