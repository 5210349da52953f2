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

// connection is a mounted FUSE connection. The keeper keeps it open while a daemon serves it that
// has left in memory what another daemon needs to take it over.
type connection struct {
	dev    *os.File
	memory *os.File    // nil: no other daemon can take it over
	kept   bool        // a daemon has served it, and memory is complete
	covers atomic.Bool // a daemon has mounted covers or views, which die with it

	mu    sync.Mutex
	files map[int32]struct{} // guarded by mu: registered for passthrough, by backers of several daemons
}

// backed counts a file that is registered.
func (c *connection) backed(id int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files[id] = struct{}{}
}

// unback reports whether a file is registered, and no longer counts it.
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

// connect mounts the connection of the next daemon, unless there is one. The kernel lets calls
// wait until that daemon answers.
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
	// adoptions is how many deaths in a row a connection survives. A request on it may be the
	// cause, so after that the next daemon gets a new one.
	adoptions = 2
	// adoptTime bounds the wait for a killed daemon. One of its threads may wait for an answer on
	// its own mount, which then has to be aborted.
	adoptTime = time.Second
)

// passOn prepares the connection for the next daemon, which goes on with its open files; an error
// says why it cannot.
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
		return errors.New("the daemon does not die")
	}
	if err := c.killOrphans(); err != nil {
		return err
	}
	return conn.resend()
}

// serves notes that the daemon serves the connection. If no other one can take it over, the
// keeper's descriptor would only keep it open when the daemon is dead.
func (c *child) serves(kept bool) {
	if kept && c.conn.memory != nil {
		c.conn.kept = true
	} else {
		c.k.disconnect()
	}
}

// notifyResend is FUSE_NOTIFY_RESEND.
const notifyResend = 7

// resend makes the kernel send again the requests that were read and not answered (Linux 6.9).
func (c *connection) resend() error {
	var b [16]byte // length, code, number 0
	binary.NativeEndian.PutUint32(b[:], uint32(len(b)))
	binary.NativeEndian.PutUint32(b[4:], notifyResend)
	if _, err := unix.Write(int(c.dev.Fd()), b[:]); err != nil {
		return fmt.Errorf("the kernel cannot send requests again: %w", err)
	}
	return nil
}

// replace has the next daemon take the connection over, or gives it a new one.
func (c *child) replace() error {
	err := c.passOn()
	if err == nil {
		c.k.log.Info("the next daemon takes over the mount: its open files go on")
		return nil
	}
	c.k.log.WithField("reason", err.Error()).Info("the next daemon gets a new mount: open files fail")
	return errors.Join(c.unmount(), c.k.connect())
}
