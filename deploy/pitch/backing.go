package pitch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
)

const (
	iocBackingOpen  = 0x4010e501 // FUSE_DEV_IOC_BACKING_OPEN
	iocBackingClose = 0x4004e502 // FUSE_DEV_IOC_BACKING_CLOSE
	// maxCovers bounds the covers and views that a daemon may have mounted.
	maxCovers = 64
	// maxBacked bounds the files that the kernel keeps open for one daemon.
	maxBacked = 1 << 17
)

// mounter makes the mounts over dataset name that need root, and returns the descriptor that
// the daemon has to serve. The mount helper talks to the daemon on a socket.
type mounter interface {
	cover(name string, talk *os.File) (*os.File, error)
	view(name string, talk *os.File) (*os.File, error)
}

// backer registers files for passthrough with the FUSE connection of a daemon's mount, and
// has covers and views mounted for it. When the daemon's end of the socket closes it ends and
// closes the connection, so that the connection dies with the daemon.
type backer struct {
	fuse  *os.File // own descriptor of the connection
	sock  int
	uid   uint32
	files map[int32]struct{}
	by    mounter
	asked int // mounts requested so far
}

// serve answers requests until the socket closes.
func (b *backer) serve() {
	defer unix.Close(b.sock)
	defer b.fuse.Close()
	for {
		id, dev, err := b.next()
		if errors.Is(err, errDaemonGone) {
			return
		}
		var a [daemon.BackingReply]byte
		binary.LittleEndian.PutUint32(a[:], uint32(errnoOf(err)))
		binary.LittleEndian.PutUint32(a[4:], uint32(id))
		if b.answer(a[:], dev) != nil {
			return
		}
	}
}

// answer sends a packet, with dev if it is not nil.
func (b *backer) answer(p []byte, dev *os.File) error {
	var rights []byte
	if dev != nil {
		defer dev.Close() // the daemon has its own
		rights = unix.UnixRights(int(dev.Fd()))
	}
	return unix.Sendmsg(b.sock, p, rights, nil, unix.MSG_NOSIGNAL)
}

var errDaemonGone = errors.New("the daemon's end is closed")

func errnoOf(err error) syscall.Errno {
	var no syscall.Errno
	if err != nil && !errors.As(err, &no) {
		return syscall.EIO
	}
	return no
}

// next serves one request.
func (b *backer) next() (int32, *os.File, error) {
	var p [daemon.BackingAsk + 1]byte
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := unix.Recvmsg(b.sock, p[:], oob, unix.MSG_CMSG_CLOEXEC)
	if errors.Is(err, unix.EINTR) {
		return 0, nil, syscall.EINTR
	}
	if err != nil || n == 0 {
		return 0, nil, errDaemonGone
	}
	fds, err := rights(oob[:oobn])
	defer closeAll(fds)
	if err != nil || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return 0, nil, syscall.EPROTO
	}
	switch {
	case n == 1 && p[0] == daemon.BackingOpen && len(fds) == 1:
		id, err := b.open(fds[0])
		return id, nil, err
	case n == 5 && p[0] == daemon.BackingDrop && len(fds) == 0:
		return 0, nil, b.drop(int32(binary.LittleEndian.Uint32(p[1:])))
	case n > 1 && n <= daemon.BackingAsk && p[0] == daemon.BackingCover && len(fds) == 1:
		dev, err := b.mount(b.by.cover, string(p[1:n]), fds[0])
		return 0, dev, err
	case n > 1 && n <= daemon.BackingAsk && p[0] == daemon.BackingView && len(fds) == 1:
		dev, err := b.mount(b.by.view, string(p[1:n]), fds[0])
		return 0, dev, err
	}
	return 0, nil, syscall.EPROTO
}

// mount bounds the mounts of a daemon, and passes its socket on; the caller closes fd. The
// mounter checks the name.
func (b *backer) mount(by func(string, *os.File) (*os.File, error), name string, fd int) (*os.File, error) {
	if b.asked++; b.asked > maxCovers {
		return nil, syscall.ENOSPC
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	talk := os.NewFile(uintptr(own), "talk")
	defer talk.Close() // the helper has its own
	return by(name, talk)
}

// rights returns the descriptors of a packet, also with an error.
func rights(oob []byte) (fds []int, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		f, e := unix.ParseUnixRights(&m)
		fds = append(fds, f...)
		err = errors.Join(err, e)
	}
	return fds, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // the kernel has its own
	}
}

// open registers a plain file of the user, open for reading only: the user can read it anyway.
func (b *backer) open(fd int) (int32, error) {
	if len(b.files) >= maxBacked {
		return 0, syscall.ENOSPC
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != b.uid || flags&(unix.O_ACCMODE|unix.O_PATH) != unix.O_RDONLY {
		return 0, syscall.EPERM
	}
	m := struct {
		fd      int32
		flags   uint32
		padding uint64
	}{fd: int32(fd)}
	id, _, no := unix.Syscall(unix.SYS_IOCTL, b.fuse.Fd(), iocBackingOpen, uintptr(unsafe.Pointer(&m)))
	if no != 0 {
		return 0, no
	}
	b.files[int32(id)] = struct{}{}
	return int32(id), nil
}

func (b *backer) drop(id int32) error {
	if _, ok := b.files[id]; !ok {
		return syscall.ENOENT
	}
	u := uint32(id)
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, b.fuse.Fd(), iocBackingClose, uintptr(unsafe.Pointer(&u))); no != 0 {
		return no
	}
	delete(b.files, id)
	return nil
}

// startBacker starts a backer with its own descriptor of the connection. far is the daemon's
// end of the socket; the caller closes it. done is called when the backer has ended. stop,
// called once, ends it even if other processes hold far.
func startBacker(conn *connection, uid uint32, by mounter, done func()) (far *os.File, stop func(), err error) {
	own, err := unix.FcntlInt(conn.dev.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("passthrough: %w", err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(own) // nothing was done with it
		return nil, nil, fmt.Errorf("passthrough: %w", err)
	}
	again, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0) // the backer closes its own
	if err != nil {
		closeAll([]int{own, fds[0], fds[1]})
		return nil, nil, fmt.Errorf("passthrough: %w", err)
	}
	stop = func() {
		_ = unix.Shutdown(again, unix.SHUT_RDWR) // it may have ended
		_ = unix.Close(again)                    // nothing was written
	}
	b := &backer{fuse: os.NewFile(uintptr(own), fuseDevice), sock: fds[0], uid: uid, files: conn.files, by: by}
	go func() {
		defer done()
		b.serve()
	}()
	return os.NewFile(uintptr(fds[1]), "backing"), stop, nil
}
