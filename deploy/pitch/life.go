package pitch

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/mounts"
)

const (
	// idProgram knows the user's groups also where they are in LDAP.
	idProgram = "/usr/bin/id"
	idTimeout = 10 * time.Second
	// grace is how long a daemon whose leash was cut may take to end.
	grace = 2 * time.Second
	// restartTime is how long a daemon may take to be ready again.
	restartTime = 60 * time.Second
	// reserve is what a daemon has less than the prolog, so that it is the
	// daemon that says which host is missing.
	reserve = 3 * time.Second
	// maxHelpers is how many helpers of package mounts, which are root's, work for a
	// daemon at a time: two for each dataset that has a cover or a view.
	maxHelpers = 8
)

// fatal is an error after which no other daemon is tried.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

// child is a running daemon, its end of the leash and its mount.
type child struct {
	k     *keeper
	cmd   *exec.Cmd
	proc  process
	leash *daemon.Leash
	notes chan daemon.Note // closed when the leash is cut
	stop  chan struct{}    // closed when nobody reads notes any more
	died  chan struct{}    // closed when the process has ended
	exit  error            // how, when died is closed
	wg    sync.WaitGroup

	backing bool         // it has a backer
	unback  func()       // ends that
	helpers atomic.Int32 // that work for it

	leftMu sync.Mutex
	left   []string // guarded by leftMu; helpers that do not die
}

// life is that of one daemon, from its mount to its end: nil when the job is
// to leave, or why it died.
func (k *keeper) life() error {
	first := len(k.deaths) == 0
	until := time.Now().Add(restartTime)
	if first {
		until = k.rec.until()
	}
	if k.isLeaving() {
		return nil
	}
	c, err := k.launch(until)
	if err != nil {
		return fatal{err}
	}
	err = c.live(until, first)
	if e := c.strike(err == nil); e != nil {
		return fatal{errors.Join(err, e)}
	}
	return err
}

// live waits until the daemon is ready, and then watches it.
func (c *child) live(until time.Time, first bool) error {
	err := c.ready(until)
	if first && err != nil {
		return fatal{err} // what does not start will not start
	}
	if err != nil || c.k.isLeaving() {
		return err
	}
	if err := mounts.SetReadAhead(c.k.place.mount()); err != nil {
		c.k.log.WithError(err).Debug("the read-ahead stays as it is")
	}
	if first {
		if err := c.k.place.writeState(State{Ready, c.k.place.mount()}); err != nil {
			return fatal{err}
		}
		c.k.log.Info("ready")
	}
	return c.watch()
}

// launch mounts and starts a daemon.
func (k *keeper) launch(until time.Time) (*child, error) {
	if err := k.writeJob(until); err != nil {
		return nil, err
	}
	fuse, err := mountFuse(k.place.mount(), k.rec.Job.UID, k.rec.Job.GID)
	if err != nil {
		return nil, err
	}
	c, err := k.spawn(fuse)
	_ = fuse.Close() // the daemon has its own; ours would keep a dead connection open
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), unmountTime)
		defer cancel()
		return nil, errors.Join(err, unmount(ctx, k.place.mount(), unmountTime))
	}
	return c, nil
}

// writeJob writes the daemon's job file, which its user can read and no other.
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

func (k *keeper) spawn(fuse *os.File) (*child, error) {
	cred, err := credential(k.rec.Job.UID, k.rec.Job.GID)
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetNonblock(fds[0], true) // so that Close ends a Receive
	near, far := os.NewFile(uintptr(fds[0]), "leash"), os.NewFile(uintptr(fds[1]), "leash")
	defer far.Close()
	cmd := exec.Command(k.program, "daemon", "--job-file", k.place.jobFile())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env, cmd.Dir = []string{"PATH=" + safePath, "LANG=C.UTF-8"}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Credential: cred}
	c := &child{
		k: k, cmd: cmd, leash: daemon.NewLeash(near),
		notes: make(chan daemon.Note), stop: make(chan struct{}), died: make(chan struct{}), unback: func() {},
	}
	if err := c.start(far, fuse); err != nil {
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

// start starts the process with the descriptors that it expects. Without a
// backer it reads everything through the mount, which is only slower.
func (c *child) start(leash, fuse *os.File) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	c.wg.Add(1)
	back, stop, err := startBacker(fuse, c.k.rec.Job.UID, c, c.wg.Done)
	if err != nil {
		c.wg.Done()
		c.k.log.WithError(err).Warn("no file is read by the kernel alone")
		back = null
	} else {
		c.backing, c.unback = true, stop
		defer back.Close()
	}
	c.cmd.ExtraFiles = []*os.File{leash, fuse, null, back} // daemon.LeashFD, FuseFD, ListenFD, BackingFD
	return daemon.StartProcess(c.cmd)
}

// cover mounts one for the daemon.
func (c *child) cover(name string, talk *os.File) (*os.File, error) {
	return c.helped(name, "a dataset is not covered", func(ctx context.Context) (*os.File, func() error, error) {
		return c.over(name).Mount(ctx, c.k.program, talk)
	})
}

// view makes one for the daemon.
func (c *child) view(name string, talk *os.File) (*os.File, error) {
	if c.k.rec.Job.KernelView == job.KernelViewOff { // also if a daemon asks all the same
		return nil, unix.EPERM
	}
	return c.helped(name, "a dataset has no kernel view", func(ctx context.Context) (*os.File, func() error, error) {
		v := mounts.View{Cover: c.over(name), Stores: c.k.rec.Job.Dirs.Store}
		return v.Mount(ctx, c.k.program, talk)
	})
}

func (c *child) over(name string) mounts.Cover {
	return mounts.Cover{Base: c.k.place.mount(), Name: name, UID: c.k.rec.Job.UID, GID: c.k.rec.Job.GID}
}

// helped mounts by a process that does nothing else: the keeper waits for no answer
// of a daemon's. That goes on after it has returned.
func (c *child) helped(name, failed string, mount func(ctx context.Context) (*os.File, func() error, error)) (*os.File, error) {
	if c.helpers.Add(1) > maxHelpers {
		c.helpers.Add(-1)
		c.k.log.WithField("dataset", name).Infof("%s: there are %d helpers at work", failed, maxHelpers)
		return nil, unix.EAGAIN
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.wg.Add(1) // the backer is counted, so this does not race with strike
	go func() {
		defer c.wg.Done()
		defer cancel()
		select {
		case <-c.stop:
		case <-ctx.Done():
		}
	}()
	dev, end, err := mount(ctx)
	if err != nil {
		cancel()
		c.helperEnded(name, err)
		c.k.log.WithError(err).WithField("dataset", name).Info(failed)
		return nil, err
	}
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		defer cancel()
		c.helperEnded(name, end())
	}()
	return dev, nil
}

// helperEnded makes room for another, unless err says that this one is there still.
func (c *child) helperEnded(name string, err error) {
	if !errors.Is(err, unix.EBUSY) {
		c.helpers.Add(-1)
		return
	}
	c.k.log.WithError(err).WithField("dataset", name).Error("a helper is left")
	c.leftMu.Lock()
	defer c.leftMu.Unlock()
	c.left = append(c.left, err.Error())
}

// settle does for a new daemon what only root can, and lets it begin. If the
// daemon is dead already, watch will hear of it.
func (k *keeper) settle(c *child) {
	pid := strconv.Itoa(c.proc.pid)
	if err := c.proc.write(k.place.daemonPid()); err != nil {
		k.log.WithError(err).Warn("the daemon is not written down")
	}
	if err := os.WriteFile("/proc/"+pid+"/oom_score_adj", []byte("0"), 0); err != nil {
		k.log.WithError(err).Debug("the daemon is spared like its keeper")
	}
	if err := enterCgroup(k.place, c.proc.pid); err != nil {
		k.log.WithError(err).Warn("the daemon's memory is not bounded")
	}
	if err := c.leash.Send(daemon.Start{Key: hex.EncodeToString(k.key[:]), Fuse: true, Backing: c.backing}); err != nil {
		k.log.WithError(err).Warn("the daemon does not listen")
	}
}

// credential is the user's, with the groups that the system knows of.
func credential(uid, gid uint32) (*syscall.Credential, error) {
	c := &syscall.Credential{Uid: uid, Gid: gid}
	ctx, cancel := context.WithTimeout(context.Background(), idTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, idProgram, "-G", "--", strconv.FormatUint(uint64(uid), 10))
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{"PATH=" + safePath}, "/", time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("the groups of uid %d are not known: %w: see id -G %d on this node", uid, err, uid)
	}
	for f := range strings.FieldsSeq(string(out)) {
		g, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("the groups of uid %d: %w", uid, err)
		}
		c.Groups = append(c.Groups, uint32(g))
	}
	return c, nil
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
		if err := c.leash.Receive(&n); err != nil {
			return
		}
		select {
		case c.notes <- n:
		case <-c.stop:
			return
		}
	}
}

// strike ends the daemon and its mount, whatever state they are in. A daemon
// that may go in peace has a moment after its leash was cut.
func (c *child) strike(peace bool) error {
	close(c.stop)
	_ = c.leash.Close() // that it is cut is the message
	if peace {
		c.waitDied(grace)
	}
	c.proc.kill()
	_ = c.cmd.Process.Kill() // also if its start time could not be read
	ctx, cancel := context.WithTimeout(context.Background(), unmountTime)
	defer cancel()
	err := unmount(ctx, c.k.place.mount(), unmountTime)
	if !c.waitDied(killTime) {
		return errors.Join(err, fmt.Errorf("the daemon, process %d, does not die", c.proc.pid))
	}
	if e := c.killOrphans(); e != nil {
		c.k.troubled(e.Error())
	}
	c.unback()
	c.wg.Wait()
	for _, what := range c.left { // nobody adds to it any more
		c.k.troubled(what)
	}
	if e := os.Remove(c.k.place.daemonPid()); e != nil && !errors.Is(e, os.ErrNotExist) {
		c.k.log.WithError(e).Warn("a dead daemon stays written down")
	}
	return err
}

// killOrphans ends what the daemon has started. It may have the daemon's descriptors.
func (c *child) killOrphans() error {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	return killOrphans(ctx, c.k.rec.Job.UID)
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
