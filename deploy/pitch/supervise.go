package pitch

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/mounts"
)

const (
	// grace is how long a daemon may take to end after its heartbeat connection was closed.
	grace = 2 * time.Second
	// restartTime bounds the start of a restarted daemon.
	restartTime = 60 * time.Second
	// reserve is how much earlier than the prolog the daemon gives up: its error names the missing host.
	reserve = 3 * time.Second
)

// fatal is an error after which the daemon is not restarted.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

// child is a running daemon, the heartbeat connection to it, and its mount.
type child struct {
	k         *keeper
	conn      *connection
	cmd       *exec.Cmd
	proc      process
	heartbeat *daemon.Heartbeat
	notes     chan daemon.Note // closed with the heartbeat connection
	stop      chan struct{}    // closed when notes are no longer read
	died      chan struct{}    // closed when the process has ended
	exit      error            // of the process, once died is closed
	wg        sync.WaitGroup

	backing bool         // passthrough is available
	unback  func()       // stops the backer
	helpers atomic.Int32 // running mount helpers

	leftMu sync.Mutex
	left   []string // guarded by leftMu; mount helpers that did not die
}

// supervise runs one daemon, from its mount to its end. It returns nil when the job is to leave, or the reason why the
// daemon died.
func (k *keeper) supervise() error {
	first := len(k.deaths) == 0
	until := time.Now().Add(restartTime)
	switch {
	case k.mustFinish():
		until = time.Now().Add(min(restartTime, time.Until(k.leaveDeadline())))
	case k.isLeaving():
		if !first && len(k.rec.Job.StageOut) > 0 {
			k.reportTrouble("stage-out is incomplete: the daemon died, and there was no time to start it again")
		}
		return nil
	case first:
		until = k.rec.until()
	}
	c, err := k.launch(until)
	if err != nil {
		return fatal{err}
	}
	err = c.run(until, first)
	if e := c.kill(err == nil); e != nil {
		return fatal{errors.Join(err, e)}
	}
	return err
}

// run waits until the daemon is ready, and then watches it.
func (c *child) run(until time.Time, first bool) error {
	err := c.ready(until)
	if first && err != nil {
		return fatal{err} // a second start would fail, too
	}
	switch {
	case err != nil:
		return err
	case c.k.mustFinish():
		return c.awaitLeave()
	case c.k.isLeaving():
		return nil
	}
	if err := mounts.SetReadAhead(c.k.place.mount()); err != nil {
		c.k.log.WithError(err).Debug("could not raise the read-ahead of the mount; reads are slower")
	}
	if first {
		if err := c.k.place.writeState(State{Ready, c.k.place.mount()}); err != nil {
			return fatal{err}
		}
		c.k.log.Info("job is ready on this node")
		c.k.startExport()
	}
	return c.watch()
}

// launch starts a daemon, which serves the connection that connect has mounted. After an
// error that connection is dead.
func (k *keeper) launch(until time.Time) (c *child, err error) {
	defer func() {
		if err != nil {
			k.disconnect()
		}
	}()
	if err := k.writeJob(until); err != nil {
		return nil, err
	}
	if err := k.connect(); err != nil {
		return nil, err
	}
	return k.spawn(k.conn)
}

// writeJob writes the daemon's job file, which only its user can read.
func (k *keeper) writeJob(until time.Time) error {
	j, path := k.rec.Job, k.place.jobFile()
	j.StartTimeout = max(1, int((time.Until(until)-reserve)/time.Second))
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := j.Write(path); err != nil {
		return err
	}
	return errors.Join(os.Chmod(path, 0o400), os.Lchown(path, int(j.UID), int(j.GID)))
}

func (k *keeper) spawn(conn *connection) (*child, error) {
	cred, err := credential(k.rec.Job.UID, k.rec.Job.GID)
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetNonblock(fds[0], true) // so that Close ends a Receive
	near, far := os.NewFile(uintptr(fds[0]), "heartbeat"), os.NewFile(uintptr(fds[1]), "heartbeat")
	defer far.Close()
	cmd := exec.Command(k.program, "daemon", "--job-file", k.place.jobFile())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env, cmd.Dir = []string{"PATH=" + safePath, "LANG=C.UTF-8"}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Credential: cred}
	c := &child{
		k: k, conn: conn, cmd: cmd, heartbeat: daemon.NewHeartbeat(near),
		notes: make(chan daemon.Note), stop: make(chan struct{}), died: make(chan struct{}), unback: func() {},
	}
	if err := c.start(far, conn); err != nil {
		_ = near.Close()
		c.unback()
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	c.proc = processOf(cmd.Process.Pid)
	c.wg.Add(2)
	go c.wait()
	go c.listen()
	k.settle(c)
	return c, nil
}

// start starts the process with the descriptors that it expects. Without passthrough the daemon serves every read
// through the mount, which is only slower.
func (c *child) start(heartbeat *os.File, conn *connection) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	c.wg.Add(1)
	back, stop, err := startBacker(conn, c.newBacker(), c.wg.Done)
	if err != nil {
		c.wg.Done()
		c.k.log.WithError(err).Warn("no passthrough: files are read through FUSE, which is slower")
		back = null
	} else {
		c.backing, c.unback = true, stop
		defer back.Close()
	}
	memory := conn.memory
	if memory == nil {
		memory = null
	}
	c.cmd.ExtraFiles = []*os.File{heartbeat, conn.dev, null, back, memory} // daemon.HeartbeatFD, FuseFD, ListenFD, BackingFD, HandoverFD
	return daemon.StartProcess(c.cmd)
}

// newBacker opens the job's stores.
func (c *child) newBacker() *backer {
	b := &backer{uid: c.k.rec.Job.UID, by: c}
	for _, s := range c.k.rec.Job.Dirs.Store {
		h, err := openStore(s, b.uid)
		if err != nil {
			c.k.log.WithError(err).Warn("no passthrough for this store: its files are read through FUSE, which is slower")
		}
		b.stores = append(b.stores, h)
	}
	return b
}

// settle does the steps for a new daemon that need root, and sends it the start message. If the daemon has already
// died, watch notices.
func (k *keeper) settle(c *child) {
	pid := strconv.Itoa(c.proc.pid)
	if err := c.proc.write(k.place.daemonPid()); err != nil {
		k.log.WithError(err).Warn("could not write daemon.pid; the epilog will not find the daemon if the keeper dies")
	}
	if err := os.WriteFile("/proc/"+pid+"/oom_score_adj", []byte("0"), 0); err != nil {
		k.log.WithError(err).Debug("could not reset the daemon's OOM score")
	}
	if err := enterCgroup(k.place, c.proc.pid); err != nil {
		k.log.WithError(err).Warn("could not put the daemon into its memory cgroup; its memory is not bounded")
	}
	start := daemon.Start{Key: hex.EncodeToString(k.key[:]), Fuse: true, Backing: c.backing, Handover: c.conn.memory != nil, Adopt: c.conn.kept}
	if err := c.heartbeat.Send(start); err != nil {
		k.log.WithError(err).Warn("could not send the start message to the daemon: it is restarted")
	}
}

func (c *child) wait() {
	defer c.wg.Done()
	c.exit = c.cmd.Wait()
	close(c.died)
}

func (c *child) listen() {
	defer c.wg.Done()
	defer close(c.notes)
	for {
		var n daemon.Note
		if err := c.heartbeat.Receive(&n); err != nil {
			return
		}
		select {
		case c.notes <- n:
		case <-c.stop:
			return
		}
	}
}

// kill ends the daemon, whatever its state. A graceful kill first gives the daemon grace to end by itself, and ends its
// mount, down to the backstop; after any other kill, calls wait for the next daemon.
func (c *child) kill(graceful bool) error {
	close(c.stop)
	_ = c.heartbeat.Close() // tells the daemon to end
	if graceful {
		c.waitDied(grace)
	}
	c.proc.kill()
	_ = c.cmd.Process.Kill() // in case its start time could not be read
	end := c.replace
	if graceful {
		end = c.unmount
	}
	err := end()
	if !c.waitDied(killTime) {
		return errors.Join(err, fmt.Errorf("daemon process %d did not exit after SIGKILL; if it hangs in the source, wait for that filesystem or reboot", c.proc.pid))
	}
	if e := c.killOrphans(); e != nil {
		c.k.reportTrouble(e.Error())
	}
	c.unback()
	c.awaitRequests(3 * killTime) // longer than helpers may take to die
	if e := os.Remove(c.k.place.daemonPid()); e != nil && !errors.Is(e, os.ErrNotExist) {
		c.k.log.WithError(e).Warn("could not remove daemon.pid of the dead daemon")
	}
	return err
}

// awaitRequests waits until no request of the dead daemon is in progress, up to limit: a drive may hang.
func (c *child) awaitRequests(limit time.Duration) {
	ended := make(chan struct{})
	go func() { c.wg.Wait(); close(ended) }()
	select {
	case <-ended:
		for _, what := range c.left { // complete once all requests have ended
			c.k.reportTrouble(what)
		}
	case <-time.After(limit):
		c.k.log.Warn("a request of the dead daemon hangs in the kernel: the keeper continues without it")
	}
}

// unmount ends the mount of the daemon, down to the backstop.
func (c *child) unmount() error {
	c.k.disconnect()
	return unmountAbove(context.Background(), c.k.place.mount(), 1, unmountTime)
}

// killOrphans kills the processes that the daemon has started; they may hold its descriptors.
func (c *child) killOrphans() error {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	return killOrphans(ctx)
}

func (c *child) waitDied(limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-c.died:
		return true
	case <-t.C:
		return false
	}
}
