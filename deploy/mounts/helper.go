package mounts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// helper is a process that makes a mount for the daemon.
type helper struct {
	program string
	args    []string
	limit   time.Duration
}

// Mounting is a mount that a helper makes. The caller closes both descriptors.
type Mounting struct {
	Dev  *os.File     // of /dev/fuse; the caller serves the connection
	Talk *os.File     // the near end of a talk with the helper
	End  func() error // waits for the helper
}

// killTime is how long a killed helper may take to die. It cannot die while it waits for an answer on a connection
// whose descriptor another process still holds.
const killTime = 5 * time.Second

// start starts the helper and kills it if it has not mounted by limit.
func (h helper) start(ctx context.Context) (m *Mounting, err error) {
	talk, theirs, err := socketpair(unix.SOCK_STREAM, "talk")
	if err != nil {
		return nil, err
	}
	defer theirs.Close() // the helper has its own
	if m, err = h.run(ctx, theirs); err != nil {
		return nil, errors.Join(err, talk.Close())
	}
	m.Talk = talk
	return m, nil
}

// run starts the helper with its end of a talk.
func (h helper) run(ctx context.Context, talk *os.File) (*Mounting, error) {
	ctx, cancel := context.WithTimeout(ctx, h.limit)
	f, far, err := socketpair(unix.SOCK_SEQPACKET, "cover")
	if err != nil {
		cancel()
		return nil, err
	}
	near, err := Conn(f)
	if err != nil {
		cancel()
		return nil, errors.Join(err, far.Close())
	}
	var said strings.Builder
	cmd := exec.CommandContext(ctx, h.program, h.args...)
	cmd.Stderr, cmd.Dir = &said, "/"
	cmd.Env = []string{"LANG=C.UTF-8"}
	cmd.ExtraFiles = []*os.File{far, talk} // coverFD, talkFD
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	_ = far.Close() // the helper has its own
	if err != nil {
		cancel()
		return nil, errors.Join(err, near.Close())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the error is in said
	}()
	end := func() error {
		defer cancel()
		defer near.Close() // no further message is expected
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
		}
		return awaitKilled(ended, cmd.Process.Pid)
	}
	soon, stop := context.WithTimeout(ctx, coverTime)
	defer stop()
	dev, err := receiveFile(soon, near)
	if err != nil {
		cancel() // the helper may be stuck elsewhere
		if e := end(); e != nil {
			return nil, errors.Join(err, e)
		}
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return &Mounting{Dev: dev, End: end}, nil
}

// awaitKilled waits for a killed helper to die.
func awaitKilled(ended <-chan struct{}, pid int) error {
	t := time.NewTimer(killTime)
	defer t.Stop()
	select {
	case <-ended:
		return nil
	case <-t.C:
		return fmt.Errorf("mount helper, process %d, did not exit after SIGKILL: end the process that holds its /dev/fuse: %w", pid, unix.EBUSY)
	}
}

// socketpair returns both ends of a socket.
func socketpair(kind int, name string) (near, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// Conn returns the connection of the Unix socket f, and closes f.
func Conn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is a %T: %w", f.Name(), c, syscall.EINVAL), c.Close())
	}
	return u, nil
}

// receiveFile waits for a packet with one descriptor.
func receiveFile(ctx context.Context, conn *net.UnixConn) (*os.File, error) {
	if d, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(d) // a socket has deadlines
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
	}
	return sentFile(oob[:n], "/dev/fuse")
}

// sentFile returns the one descriptor that arrived with a packet.
func sentFile(oob []byte, name string) (*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return nil, fmt.Errorf("the mount helper sent no descriptor: %w", syscall.EPROTO)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("the mount helper sent no descriptor: %w", syscall.EPROTO)
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), name), nil
}
