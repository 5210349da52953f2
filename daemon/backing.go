package daemon

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// BackingFD is the descriptor of a socket to the keeper, if Start.Backing is set: a Unix sequential-packet socket for
// the FUSE requests that need CAP_SYS_ADMIN. A request is one packet, answered by one packet, in order; numbers are
// little endian. No request carries a descriptor: if it were of a FUSE file of the user whose server hangs, the keeper
// would block when it checks its type, and when it closes it.
//
//	request 'B'  store 1 byte  inode 8 bytes        register a file for reading (passthrough): the
//	    path                                        number of its store directory, the path below that
//	request 'D'  id 4 bytes                         forget this id
//	request 'C'  name 1 to 255 bytes                mount a cover of this dataset
//	request 'V'  the same                           make a kernel view of it
//	answer  errno 4 bytes (0 is success)  id 4 bytes; those to 'C' and 'V' have two descriptors with them: of
//	    /dev/fuse, and the near end of a talk with the helper (package mounts)
const BackingFD = 6

// The requests on BackingFD, and the sizes of the packets.
const (
	BackingOpen  = 'B'
	BackingDrop  = 'D'
	BackingCover = 'C'
	BackingView  = 'V'
	BackingAsk   = 256 // bytes of the longest request
	BackingHead  = 10  // bytes of a BackingOpen before the path
	BackingReply = 8   // bytes of an answer
)

// Backing is the daemon's end of the socket. Several goroutines may use it.
type Backing struct {
	stores []string

	mu   sync.Mutex
	conn *net.UnixConn // guarded by mu
}

// NewBacking uses f as the socket, and closes f. stores are the job's store directories.
func NewBacking(f *os.File, stores []string) (*Backing, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("keeper's socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close() // not a Unix socket
		return nil, fmt.Errorf("keeper's socket is %T: %w", c, syscall.EINVAL)
	}
	return &Backing{conn: u, stores: stores}, nil
}

// Back has the keeper register f, a file in a store directory, with the connection of the mount. If another file has
// its name by now, the error is ENOENT or ESTALE.
func (b *Backing) Back(f *os.File) (int32, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	for i, s := range b.stores {
		path, ok := strings.CutPrefix(f.Name(), filepath.Clean(s)+"/")
		if !ok {
			continue
		}
		p := binary.LittleEndian.AppendUint64([]byte{BackingOpen, byte(i)}, st.Sys().(*syscall.Stat_t).Ino)
		id, _, err := b.ask(append(p, path...))
		return id, err
	}
	return 0, fmt.Errorf("%s is in no store: %w", f.Name(), syscall.EINVAL)
}

// Cover has the keeper mount a cover of a dataset. It returns the descriptor to serve, and the near end of a talk with
// the helper.
func (b *Backing) Cover(name string) (dev, talk *os.File, err error) {
	return b.mount(BackingCover, name)
}

// View has the keeper make a kernel view of a dataset. It returns what Cover does; the daemon sends the tree in the
// talk.
func (b *Backing) View(name string) (dev, talk *os.File, err error) {
	return b.mount(BackingView, name)
}

func (b *Backing) mount(what byte, name string) (dev, talk *os.File, err error) {
	if name == "" || len(name) >= BackingAsk {
		return nil, nil, fmt.Errorf("mount over %q: %w", name, syscall.EINVAL)
	}
	_, sent, err := b.ask(append([]byte{what}, name...))
	if err != nil {
		return nil, nil, err
	}
	if len(sent) != 2 {
		closeFiles(sent)
		return nil, nil, fmt.Errorf("keeper's socket: a mount with %d descriptors: %w", len(sent), syscall.EPROTO)
	}
	return sent[0], sent[1], nil
}

// Drop has the keeper drop an id.
func (b *Backing) Drop(id int32) error {
	_, _, err := b.ask(binary.LittleEndian.AppendUint32([]byte{BackingDrop}, uint32(id)))
	return err
}

func (b *Backing) ask(p []byte) (int32, []*os.File, error) {
	if len(p) > BackingAsk {
		return 0, nil, fmt.Errorf("keeper's socket: request of %d bytes: %w", len(p), syscall.ENAMETOOLONG)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.conn.Write(p); err != nil {
		return 0, nil, fmt.Errorf("keeper's socket: %w", err)
	}
	var a [BackingReply]byte
	oob := make([]byte, unix.CmsgSpace(2*4))
	n, oobn, _, _, err := b.conn.ReadMsgUnix(a[:], oob)
	if err != nil {
		return 0, nil, fmt.Errorf("keeper's socket: %w", err)
	}
	sent := sentFiles(oob[:oobn])
	if n != len(a) {
		err = fmt.Errorf("keeper's socket: answer of %d bytes: %w", n, syscall.EPROTO)
	} else if no := syscall.Errno(binary.LittleEndian.Uint32(a[:])); no != 0 {
		err = fmt.Errorf("keeper: %w", no)
	}
	if err != nil {
		closeFiles(sent)
		return 0, nil, err
	}
	return int32(binary.LittleEndian.Uint32(a[4:])), sent, nil
}

// sentFiles returns the descriptors received with an answer.
func sentFiles(oob []byte) (files []*os.File) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return nil
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		files = append(files, os.NewFile(uintptr(fd), "from the keeper"))
	}
	return files
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // not used
	}
}

// Close closes the socket.
func (b *Backing) Close() error { return b.conn.Close() }
