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
	talk    *os.File
	limit   time.Duration
}

// killTime is how long a killed helper may take to die. It does not die while it waits for
// an answer of a connection whose descriptor another process still holds.
const killTime = 5 * time.Second

// start returns the descriptor of /dev/fuse of the helper's connection, and end, which waits
// for the helper. The helper is killed if it has not mounted by limit.
func (h helper) start(ctx context.Context) (dev *os.File, end func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.limit)
	near, far, err := socketpair(unix.SOCK_SEQPACKET, "cover")
	if err != nil {
		cancel()
		return nil, nil, err
	}
	var said strings.Builder
	cmd := exec.CommandContext(ctx, h.program, h.args...)
	cmd.Stderr, cmd.Dir = &said, "/"
	cmd.Env = []string{"LANG=C.UTF-8"}
	cmd.ExtraFiles = []*os.File{far, h.talk} // coverFD, talkFD
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	_ = far.Close() // the helper has its own
	if err != nil {
		cancel()
		return nil, nil, errors.Join(err, near.Close())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the error is in said
	}()
	end = func() error {
		defer cancel()
		defer near.Close() // nothing more is expected
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
		}
		return awaitKilled(ended, cmd.Process.Pid)
	}
	soon, stop := context.WithTimeout(ctx, coverTime)
	defer stop()
	if dev, err = receiveFile(soon, near); err != nil {
		cancel() // it may do something else
		if e := end(); e != nil {
			return nil, nil, errors.Join(err, e)
		}
		return nil, nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return dev, end, nil
}

// awaitKilled waits for a killed helper to die.
func awaitKilled(ended <-chan struct{}, pid int) error {
	t := time.NewTimer(killTime)
	defer t.Stop()
	select {
	case <-ended:
		return nil
	case <-t.C:
		return fmt.Errorf("mount helper, process %d, was killed and does not die: end the process that holds its /dev/fuse: %w", pid, unix.EBUSY)
	}
}

// socketpair returns both ends of a socket; far is for another process.
func socketpair(kind int, name string) (near *net.UnixConn, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	far = os.NewFile(uintptr(fds[1]), name)
	f := os.NewFile(uintptr(fds[0]), name)
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		_ = far.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), far, nil
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
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return nil, fmt.Errorf("the mount helper sent no descriptor: %w", syscall.EPROTO)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("the mount helper sent no descriptor: %w", syscall.EPROTO)
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "/dev/fuse"), nil
}
