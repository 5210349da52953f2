package pitch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// connection is a mounted FUSE connection. The keeper keeps it open while it is served by a daemon whose memory
// (handover) lets another daemon take it over.
type connection struct {
	dev    *os.File
	memory *os.File    // nil: no other daemon can take it over
	kept   bool        // a daemon has served it, and memory is complete
	covers atomic.Bool // a daemon has mounted covers or views, which die with it

	mu    sync.Mutex
	files map[int32]struct{} // guarded by mu: registered for passthrough, by backers of several daemons
}

// backed records a registered file.
func (c *connection) backed(id int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files[id] = struct{}{}
}

// unback removes the record of a file, and reports whether it was registered.
func (c *connection) unback(id int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.files[id]
	delete(c.files, id)
	return ok
}

// full reports whether no more files may be registered.
func (c *connection) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.files) >= maxBacked
}

// connect mounts the connection for the next daemon, unless one exists. Calls wait in the kernel until that daemon
// answers.
func (k *keeper) connect() error {
	if k.conn != nil {
		return nil
	}
	dev, err := mountFuse(k.place.mount(), k.rec.Job.UID, k.rec.Job.GID)
	if err != nil {
		return err
	}
	k.conn = &connection{dev: dev, files: make(map[int32]struct{})}
	fd, err := unix.MemfdCreate("bivouac", unix.MFD_CLOEXEC)
	if err != nil {
		k.log.WithError(err).Warn("could not reserve memory for handing over open files: if the daemon dies, they fail")
		return nil
	}
	k.conn.memory = os.NewFile(uintptr(fd), "handover")
	return nil
}

// disconnect closes the keeper's descriptors of the connection. If no daemon has it, waiting calls
// fail.
func (k *keeper) disconnect() {
	if k.conn == nil {
		return
	}
	_ = k.conn.dev.Close() // nothing is written
	if k.conn.memory != nil {
		_ = k.conn.memory.Close() // it is the daemons'
	}
	k.conn = nil
}

const (
	// adoptions is how many deaths in a row a connection survives. A request on it may be the cause, so the daemon
	// after those gets a new connection.
	adoptions = 2
	// adoptTime bounds the wait for a killed daemon to die. One of its threads may wait for an answer on its own mount,
	// which then must be aborted.
	adoptTime = time.Second
)

// passOn prepares the connection for the next daemon, so that open files continue to work; the error says why that is
// impossible.
func (c *child) passOn() error {
	conn := c.k.conn
	switch {
	case conn == nil || !conn.kept:
		return errors.New("the daemon had not begun to serve it")
	case len(c.k.recentDeaths()) >= adoptions:
		return errors.New("several daemons have died")
	case conn.covers.Load():
		return errors.New("datasets were mounted over it")
	case !c.waitDied(adoptTime):
		return errors.New("the daemon did not exit after SIGKILL")
	}
	if err := c.killOrphans(); err != nil {
		return err
	}
	return conn.resend()
}

// serves records that the daemon serves the connection. If no other daemon can take it over, the keeper closes its
// descriptor, which would only keep the connection open after the daemon's death.
func (c *child) serves(kept bool) {
	if kept && c.conn.memory != nil {
		c.conn.kept = true
	} else {
		c.k.disconnect()
	}
}

// notifyResend is FUSE_NOTIFY_RESEND.
const notifyResend = 7

// resend makes the kernel resend the requests that were read but not answered (Linux 6.9).
func (c *connection) resend() error {
	var b [16]byte // length, code, number 0
	binary.NativeEndian.PutUint32(b[:], uint32(len(b)))
	binary.NativeEndian.PutUint32(b[4:], notifyResend)
	if _, err := unix.Write(int(c.dev.Fd()), b[:]); err != nil {
		return fmt.Errorf("the kernel cannot send requests again: %w", err)
	}
	return nil
}

// replace passes the connection on to the next daemon, or replaces it with a new mount.
func (c *child) replace() error {
	err := c.passOn()
	if err == nil {
		c.k.log.Info("the next daemon takes over the mount: open files continue to work")
		return nil
	}
	c.k.log.WithField("reason", err.Error()).Info("the next daemon gets a new mount: open files fail")
	return errors.Join(c.unmount(), c.k.connect())
}
