package daemon

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// BackingFD is the descriptor of a socket to the keeper, when Start.Backing
// says so: a Unix sequential-packet socket on which the daemon asks for what
// FUSE wants CAP_SYS_ADMIN for. A request is one packet, answered by one packet,
// in order; numbers are little endian.
//
//	request 'B', with one descriptor (SCM_RIGHTS)   register this file for reading (passthrough)
//	request 'D'  id 4 bytes                         forget this id
//	request 'C'  name 1 to 255 bytes, with one      mount a cover of this dataset
//	    descriptor, the far end of a talk (package mounts)
//	request 'V'  the same                           make a kernel view of it, of the tree that comes in the talk
//	answer  errno 4 bytes (0 is success)  id 4 bytes; those to 'C' and 'V' have a descriptor of /dev/fuse with them
const BackingFD = 6

// The requests on BackingFD, and the sizes of the packets.
const (
	BackingOpen  = 'B'
	BackingDrop  = 'D'
	BackingCover = 'C'
	BackingView  = 'V'
	BackingAsk   = 256 // bytes of the longest request
	BackingReply = 8   // bytes of an answer
)

// Backing is the daemon's end of the socket. It may be used by several
// goroutines.
type Backing struct {
	mu   sync.Mutex
	conn *net.UnixConn // guarded by mu
}

// NewBacking speaks on f, which it closes.
func NewBacking(f *os.File) (*Backing, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("keeper's socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close() // it is no socket of ours
		return nil, fmt.Errorf("keeper's socket is %T: %w", c, syscall.EINVAL)
	}
	return &Backing{conn: u}, nil
}

// Back has the keeper register f with the connection of the mount.
func (b *Backing) Back(f *os.File) (int32, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var id int32
	var aerr error
	if err := raw.Control(func(fd uintptr) {
		id, _, aerr = b.ask([]byte{BackingOpen}, unix.UnixRights(int(fd)))
	}); err != nil {
		return 0, err
	}
	return id, aerr
}

// Cover has the keeper mount a cover of a dataset, and returns the descriptor
// that has to be served then. talk is the far end of a talk, and the caller's.
func (b *Backing) Cover(name string, talk *os.File) (*os.File, error) {
	return b.mount(BackingCover, name, talk)
}

// View has the keeper make a kernel view of a dataset, as Cover, of the tree that
// comes in the talk.
func (b *Backing) View(name string, talk *os.File) (dev *os.File, err error) {
	return b.mount(BackingView, name, talk)
}

func (b *Backing) mount(what byte, name string, talk *os.File) (dev *os.File, err error) {
	if name == "" || len(name) >= BackingAsk {
		return nil, fmt.Errorf("mount over %q: %w", name, syscall.EINVAL)
	}
	raw, err := talk.SyscallConn()
	if err != nil {
		return nil, err
	}
	var aerr error
	if err := raw.Control(func(fd uintptr) {
		_, dev, aerr = b.ask(append([]byte{what}, name...), unix.UnixRights(int(fd)))
	}); err != nil {
		return nil, err
	}
	if aerr == nil && dev == nil {
		aerr = fmt.Errorf("keeper's socket: a mount without a descriptor: %w", syscall.EPROTO)
	}
	return dev, aerr
}

// Drop has the keeper forget an id.
func (b *Backing) Drop(id int32) error {
	_, _, err := b.ask(binary.LittleEndian.AppendUint32([]byte{BackingDrop}, uint32(id)), nil)
	return err
}

func (b *Backing) ask(p, rights []byte) (int32, *os.File, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, _, err := b.conn.WriteMsgUnix(p, rights, nil); err != nil {
		return 0, nil, fmt.Errorf("keeper's socket: %w", err)
	}
	var a [BackingReply]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := b.conn.ReadMsgUnix(a[:], oob)
	if err != nil {
		return 0, nil, fmt.Errorf("keeper's socket: %w", err)
	}
	f := sentFile(oob[:oobn])
	if n != len(a) {
		err = fmt.Errorf("keeper's socket: answer of %d bytes: %w", n, syscall.EPROTO)
	} else if no := syscall.Errno(binary.LittleEndian.Uint32(a[:])); no != 0 {
		err = fmt.Errorf("keeper: %w", no)
	}
	if err != nil {
		if f != nil {
			_ = f.Close() // unused
		}
		return 0, nil, err
	}
	return int32(binary.LittleEndian.Uint32(a[4:])), f, nil
}

// sentFile is the descriptor that came with an answer, nil if none did.
func sentFile(oob []byte) *os.File {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "/dev/fuse")
}

// Close ends the conversation.
func (b *Backing) Close() error { return b.conn.Close() }
