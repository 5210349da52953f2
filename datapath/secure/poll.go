package secure

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is the connection below a protected one, for addresses, deadlines and Close.
type socket struct{ net.Conn }

func (s socket) below() net.Conn { return s.Conn }

// Poll returns a function that reports, without waiting and without reading data, whether the peer has closed conn; nil
// if conn is no TCP connection, protected or not.
func Poll(conn net.Conn) func() bool {
	if p, ok := conn.(interface{ below() net.Conn }); ok {
		conn = p.below()
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	return func() bool { return closed(raw) }
}

func closed(raw syscall.RawConn) bool {
	ended := false
	err := raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ended = err == nil && n == 0 || err != nil && err != unix.EAGAIN && err != unix.EINTR
	})
	return ended || err != nil
}
