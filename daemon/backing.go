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
// FUSE passthrough wants CAP_SYS_ADMIN for. A request is one packet, answered
// by one packet, in order; numbers are little endian.
//
//	request 'B', with one descriptor (SCM_RIGHTS)   register this file for reading
//	request 'D'  id 4 bytes                         forget this id
//	answer  errno 4 bytes (0 is success)  id 4 bytes
const BackingFD = 6

// The requests on BackingFD, and the sizes of the packets.
const (
	BackingOpen  = 'B'
	BackingDrop  = 'D'
	BackingAsk   = 5 // bytes of the longest request
	BackingReply = 8 // bytes of an answer
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
		id, aerr = b.ask([]byte{BackingOpen}, unix.UnixRights(int(fd)))
	}); err != nil {
		return 0, err
	}
	return id, aerr
}

// Drop has the keeper forget an id.
func (b *Backing) Drop(id int32) error {
	_, err := b.ask(binary.LittleEndian.AppendUint32([]byte{BackingDrop}, uint32(id)), nil)
	return err
}

func (b *Backing) ask(p, rights []byte) (int32, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, _, err := b.conn.WriteMsgUnix(p, rights, nil); err != nil {
		return 0, fmt.Errorf("keeper's socket: %w", err)
	}
	var a [BackingReply]byte
	n, err := b.conn.Read(a[:])
	if err != nil {
		return 0, fmt.Errorf("keeper's socket: %w", err)
	}
	if n != len(a) {
		return 0, fmt.Errorf("keeper's socket: answer of %d bytes: %w", n, syscall.EPROTO)
	}
	if no := syscall.Errno(binary.LittleEndian.Uint32(a[:])); no != 0 {
		return 0, fmt.Errorf("keeper: %w", no)
	}
	return int32(binary.LittleEndian.Uint32(a[4:])), nil
}

// Close ends the conversation.
func (b *Backing) Close() error { return b.conn.Close() }
