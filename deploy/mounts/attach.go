package mounts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// firstPause is the pause after the first look that finds the dataset in use, and
	// maxPause the longest one that grows from it.
	firstPause = 50 * time.Millisecond
	maxPause   = 10 * time.Second
	// lookShare bounds the cost of looking: a pause is this many times as long as the looks
	// before it, up to maxCostPause. So looking takes a fiftieth of a processor.
	lookShare    = 49
	maxCostPause = 2 * time.Minute
	// idleLooks is the number of looks in a row that have to find the dataset idle. A process
	// that walks a tree can escape a single look.
	idleLooks = 2
)

// point is the directory data/NAME of a dataset, upon which a cover or a view is mounted.
type point struct {
	data int // descriptor of the directory data/
	name string
	dirs directories
}

// point opens the dataset's mountpoint.
func (c *Cover) point() (*point, error) {
	data, err := c.open("data", unix.RESOLVE_NO_XDEV)
	if err != nil {
		return nil, err
	}
	return &point{data: data, name: c.Name, dirs: directories{deep: true, proc: procfs{}}}, nil
}

func (p *point) close() { _ = unix.Close(p.data) } // it was only a handle

// top is the directory as the topmost mount there shows it.
type top struct {
	mount uint64
	ino   metadata.Ino
}

// open opens the directory in the topmost mount.
func (p *point) open() (fd int, at top, err error) {
	fd, err = unix.Openat2(p.data, p.name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1, top{}, err
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &st); err != nil {
		_ = unix.Close(fd) // nothing was done with it
		return -1, top{}, err
	}
	return fd, top{mount: st.Mnt_id, ino: metadata.Ino(st.Ino)}, nil
}

// observe records which inodes are directories of the dataset, and watches for opens of the
// topmost mount's. It keeps no directory open, which would make us a process that uses one.
func (p *point) observe() (at top, w watch, err error) {
	fd, at, err := p.open()
	if err != nil {
		return at, w, err
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO, &st); err != nil {
		return at, w, err
	}
	root, err := placeOf(fd)
	if err != nil {
		return at, w, err
	}
	p.dirs.dev, p.dirs.root, p.dirs.dataset = fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), root.ino, at.ino.Dataset()
	w, err = watchOpens(fmt.Sprintf("/proc/self/fd/%d", fd))
	return at, w, err
}

// attachIdle mounts m upon the directory once no process is walking the dataset; see the
// package comment. It reports false if the peer of talk hangs up first.
func (p *point) attachIdle(m int, talk *os.File) (bool, error) {
	was, w, err := p.observe()
	if err != nil {
		return false, err
	}
	defer w.close()
	busy := func() bool {
		w.opened() // the look finds what was opened before, if it still is
		return p.dirs.busy(w.opened)
	}
	if !awaitIdle(busy, time.Now, func(pause time.Duration) bool { return quiet(talk, pause) }) {
		return false, nil
	}
	fd, at, err := p.open()
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if at != was {
		return false, fmt.Errorf("the dataset was replaced meanwhile: %w", unix.ESTALE)
	}
	return true, unix.MoveMount(m, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// quiet waits and reports true unless the peer of talk writes or hangs up meanwhile.
func quiet(talk *os.File, pause time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(talk.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(pause/time.Millisecond))
	return n == 0 && err == nil || errors.Is(err, unix.EINTR)
}

// awaitIdle looks until the dataset was idle idleLooks times in a row. Pauses grow with the
// number and the cost of the looks; wait returns false to give up.
func awaitIdle(busy func() bool, now func() time.Time, wait func(time.Duration) bool) bool {
	pause, looked, idle := firstPause, time.Duration(0), 0
	for {
		began := now()
		if busy() {
			idle = 0
		} else if idle++; idle == idleLooks {
			return true
		}
		looked += now().Sub(began)
		rest := firstPause
		if idle == 0 {
			rest = max(pause, min(lookShare*looked, maxCostPause))
			pause, looked = min(2*pause, maxPause), 0
		}
		if !wait(rest) {
			return false
		}
	}
}

// watch reports opens of a directory and of the directories in it. The kernel queues a
// bounded number of events, so opened has to be called now and then.
type watch struct{ fd int }

func watchOpens(dir string) (watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return watch{}, err
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_OPEN|unix.IN_ONLYDIR); err != nil {
		return watch{}, errors.Join(err, unix.Close(fd))
	}
	return watch{fd}, nil
}

func (w watch) close() { _ = unix.Close(w.fd) } // it was only read

// opened reports whether a directory was opened since the last call, or the queue overflowed.
func (w watch) opened() (found bool) {
	b := make([]byte, 64<<10)
	for {
		n, err := unix.Read(w.fd, b)
		if err != nil {
			return found || !errors.Is(err, unix.EAGAIN)
		}
		for e := b[:n]; len(e) >= unix.SizeofInotifyEvent; {
			found = found || binary.NativeEndian.Uint32(e[4:])&(unix.IN_ISDIR|unix.IN_Q_OVERFLOW) != 0
			name := int(binary.NativeEndian.Uint32(e[12:]))
			e = e[min(len(e), unix.SizeofInotifyEvent+name):]
		}
	}
}
