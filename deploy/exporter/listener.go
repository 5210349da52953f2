package exporter

import (
	"net"
	"sync"
)

// limited accepts a connection when fewer than maxClients are open.
type limited struct {
	net.Listener
	free   chan struct{} // one for each open connection
	closed <-chan struct{}
}

// Accept waits for its turn first.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.free <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	return &counted{Conn: conn, release: func() { <-l.free }}, nil
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
