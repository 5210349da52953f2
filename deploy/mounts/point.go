package mounts

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// HelperGID is the filesystem group ID with which a helper looks up the name of a dataset. The daemon answers that
// lookup before all others.
const HelperGID = 0xb1700ac

// point is the directory data/NAME of a dataset, over which a cover or a view is mounted.
type point struct {
	data int // descriptor of the directory data/
	name string
}

// point opens the directory data/.
func (c *Cover) point() (*point, error) {
	data, err := c.open("data", unix.RESOLVE_NO_XDEV)
	if err != nil {
		return nil, err
	}
	return &point{data: data, name: c.Name}, nil
}

func (p *point) close() { _ = unix.Close(p.data) } // it was only a handle

// attach mounts m over the directory of the dataset with this root, unless making m failed, and reports to the daemon,
// with a handle of m if it is a view. It closes p and m.
func (p *point) attach(talk *os.File, m int, root metadata.Ino, view bool, failed error) error {
	err := failed
	if err == nil {
		defer p.close()
		defer unix.Close(m) // the mount stays
		err = p.mount(m, root)
	}
	if err != nil {
		return errors.Join(err, tellFailure(talk, err))
	}
	var rights []byte
	if view {
		h, err := unix.Openat(m, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(h) // the daemon has its own
			rights = unix.UnixRights(h)
		}
	}
	return unix.Sendmsg(int(talk.Fd()), []byte(saidMounted+"\n"), rights, nil, unix.MSG_NOSIGNAL)
}

func (p *point) mount(m int, root metadata.Ino) error {
	fd, err := p.open()
	if err != nil {
		return fmt.Errorf("directory of dataset %s: %w", p.name, err)
	}
	defer unix.Close(fd) // it was only a handle
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); err != nil {
		return err
	}
	if metadata.Ino(st.Ino) != root {
		return fmt.Errorf("dataset %s was replaced meanwhile: %w", p.name, unix.ESTALE)
	}
	return unix.MoveMount(m, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// open opens the dataset's directory in the main mount, even if programs cannot see it yet.
func (p *point) open() (fd int, err error) {
	runtime.LockOSThread() // the ID is this thread's
	defer runtime.UnlockOSThread()
	was, err := unix.SetfsgidRetGid(HelperGID)
	if err != nil {
		return -1, err
	}
	defer func() { err = errors.Join(err, unix.Setfsgid(was)) }()
	return unix.Openat2(p.data, p.name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}
