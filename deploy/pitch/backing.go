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
	"github.com/bivouacfs/bivouac/deploy/mounts"
)

const (
	iocBackingOpen  = 0x4010e501 // FUSE_DEV_IOC_BACKING_OPEN
	iocBackingClose = 0x4004e502 // FUSE_DEV_IOC_BACKING_CLOSE
	// maxCovers bounds the covers and views that a daemon may have mounted.
	maxCovers = 64
	// maxBacked bounds the files that the kernel keeps open for one daemon.
	maxBacked = 1 << 17
)

// mounter makes the mounts over dataset name that need root, and returns the descriptors for the daemon: the connection
// to serve, and a talk with the mount helper.
type mounter interface {
	cover(name string) ([]*os.File, error)
	view(name string) ([]*os.File, error)
}

// backer registers files for passthrough with the FUSE connection of a daemon's mount, and has covers and views mounted
// for it. It accepts no descriptor from the daemon, and opens only plain files of the user in the job's stores: so none
// can belong to a FUSE filesystem whose server hangs. When the daemon's end of the socket closes, the backer ends and
// closes the connection, so that the connection dies with the daemon.
type backer struct {
	fuse   *os.File // own descriptor of the connection
	sock   int
	uid    uint32
	stores []*os.File // handles of the store directories; nil: its files are not registered
	conn   *connection
	by     mounter
	asked  int // mounts requested so far
}

// serve answers requests until the socket closes.
func (b *backer) serve() {
	defer unix.Close(b.sock)
	defer b.fuse.Close()
	defer closeFiles(b.stores)
	for {
		id, files, err := b.next()
		if errors.Is(err, errDaemonGone) {
			return
		}
		var a [daemon.BackingReply]byte
		binary.LittleEndian.PutUint32(a[:], uint32(errnoOf(err)))
		binary.LittleEndian.PutUint32(a[4:], uint32(id))
		if b.answer(a[:], files) != nil {
			return
		}
	}
}

// answer sends a packet with files, and closes them: the daemon has its own descriptors.
func (b *backer) answer(p []byte, files []*os.File) error {
	defer closeFiles(files)
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	return unix.Sendmsg(b.sock, p, rights, nil, unix.MSG_NOSIGNAL)
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nil, or nothing was written
	}
}

var errDaemonGone = errors.New("the daemon's end is closed")

func errnoOf(err error) syscall.Errno {
	var no syscall.Errno
	if err != nil && !errors.As(err, &no) {
		return syscall.EIO
	}
	return no
}

// next serves one request. It accepts no descriptors: the kernel drops any that arrive, without the flush of a
// close.
func (b *backer) next() (id int32, files []*os.File, err error) {
	var p [daemon.BackingAsk + 1]byte
	n, _, flags, _, err := unix.Recvmsg(b.sock, p[:], nil, 0)
	for errors.Is(err, unix.EINTR) {
		n, _, flags, _, err = unix.Recvmsg(b.sock, p[:], nil, 0)
	}
	switch {
	case err != nil || n == 0:
		return 0, nil, errDaemonGone
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || n > daemon.BackingAsk:
	case p[0] == daemon.BackingOpen && n > daemon.BackingHead:
		id, err = b.open(int(p[1]), binary.LittleEndian.Uint64(p[2:]), string(p[daemon.BackingHead:n]))
		return id, nil, err
	case p[0] == daemon.BackingDrop && n == 5:
		return 0, nil, b.drop(int32(binary.LittleEndian.Uint32(p[1:])))
	case p[0] == daemon.BackingCover && n > 1:
		files, err = b.mount(b.by.cover, string(p[1:n]))
		return 0, files, err
	case p[0] == daemon.BackingView && n > 1:
		files, err = b.mount(b.by.view, string(p[1:n]))
		return 0, files, err
	}
	return 0, nil, syscall.EPROTO
}

// mount limits the number of mounts of a daemon. The mounter checks the name.
func (b *backer) mount(by func(string) ([]*os.File, error), name string) ([]*os.File, error) {
	if b.asked++; b.asked > maxCovers {
		return nil, syscall.ENOSPC
	}
	return by(name)
}

// open registers a plain file of the user, which the user can read anyway. ESTALE: the file has another inode.
func (b *backer) open(store int, ino uint64, path string) (int32, error) {
	if b.conn.full() {
		return 0, syscall.ENOSPC
	}
	if store >= len(b.stores) {
		return 0, syscall.EPERM
	}
	if b.stores[store] == nil {
		return 0, syscall.ESTALE // the daemon tries the other stores
	}
	h, err := mounts.Beneath(int(b.stores[store].Fd()), path)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	var st, at unix.Stat_t
	if err := errors.Join(unix.Fstat(int(h.Fd()), &st), unix.Fstat(int(b.stores[store].Fd()), &at)); err != nil {
		return 0, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != b.uid || st.Dev != at.Dev:
		return 0, syscall.EPERM
	case st.Ino != ino:
		return 0, syscall.ESTALE
	}
	fd, err := unix.Open(mounts.Reopen(h), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // waits for no lease
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd) // the kernel has its own
	m := struct {
		fd      int32
		flags   uint32
		padding uint64
	}{fd: int32(fd)}
	id, _, no := unix.Syscall(unix.SYS_IOCTL, b.fuse.Fd(), iocBackingOpen, uintptr(unsafe.Pointer(&m)))
	if no != 0 {
		return 0, no
	}
	b.conn.backed(int32(id))
	return int32(id), nil
}

func (b *backer) drop(id int32) error {
	if !b.conn.unback(id) {
		return syscall.ENOENT
	}
	u := uint32(id)
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, b.fuse.Fd(), iocBackingClose, uintptr(unsafe.Pointer(&u))); no != 0 {
		b.conn.backed(id)
		return no
	}
	return nil
}

// startBacker starts b with its own descriptor of the connection. far is the daemon's end of the socket; the caller
// closes it. done is called when the backer has ended. stop, which is called once, ends it even if other processes hold
// far.
func startBacker(conn *connection, b *backer, done func()) (far *os.File, stop func(), err error) {
	defer func() {
		if err != nil {
			closeFiles(b.stores)
		}
	}()
	own, err := unix.FcntlInt(conn.dev.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("passthrough: %w", err)
	}
	b.fuse, b.conn = os.NewFile(uintptr(own), fuseDevice), conn
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("passthrough: %w", err), b.fuse.Close())
	}
	far = os.NewFile(uintptr(fds[1]), "backing")
	again, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0) // the backer closes the first one
	if err != nil {
		_ = unix.Close(fds[0]) // nothing was sent
		return nil, nil, errors.Join(fmt.Errorf("passthrough: %w", err), b.fuse.Close(), far.Close())
	}
	stop = func() {
		_ = unix.Shutdown(again, unix.SHUT_RDWR) // it may have ended
		_ = unix.Close(again)                    // nothing was written
	}
	b.sock = fds[0]
	go func() {
		defer done()
		b.serve()
	}()
	return far, stop, nil
}

// openStore returns a handle of a store directory of the user. The directories above belong to root; it does not open
// anything that the user has mounted over the store or put in its place.
func openStore(path string, uid uint32) (*os.File, error) {
	h, err := mounts.BeneathPath(path, "")
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(h.Fd()), &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != uid) {
		err = fmt.Errorf("%s is not a directory of user %d: %w", path, uid, unix.EPERM)
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}
