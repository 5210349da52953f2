package exporter

import (
	"net"
	"sync"
)

// limited accepts a connection when fewer than maxClients are open. It closes one of a host that has maxOfHost open, so that
// no single host can keep the others out.
type limited struct {
	net.Listener
	free   chan struct{} // one for each open connection
	closed <-chan struct{}

	mu     sync.Mutex
	ofHost map[string]int // guarded by mu; open connections
}

// Accept waits for its turn first.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.free <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			<-l.free
			return nil, err
		}
		host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()) // without a port, all count as one host
		if l.enter(host) {
			return &counted{Conn: conn, release: func() { l.leave(host) }}, nil
		}
		_ = conn.Close() // nothing was written
	}
}

// enter reports whether host may have one more connection.
func (l *limited) enter(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ofHost[host] >= maxOfHost {
		return false
	}
	l.ofHost[host]++
	return true
}

func (l *limited) leave(host string) {
	l.mu.Lock()
	if l.ofHost[host]--; l.ofHost[host] == 0 {
		delete(l.ofHost, host)
	}
	l.mu.Unlock()
	<-l.free
}

// counted is a connection that makes room when it is closed.
type counted struct {
	net.Conn
	once    sync.Once
	release func()
}

// Close closes the connection.
func (c *counted) Close() error {
	defer c.once.Do(c.release)
	return c.Conn.Close()
}
