package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/fsclient/handover"
	"github.com/bivouacfs/bivouac/metadata"
)

// flock and fcntl locks, with byte ranges and open file descriptions, hold between nodes: the home of the file grants
// them (package locks of the client). A lock ends when the process closes the file or dies, or when its node is given
// up. It also ends when its daemon restarts: then the descriptors that held locks return EIO. Locks survive a restart
// of the home. The next holder sees all bytes written here before the unlock, even if a signal interrupted the close or
// the unlock, or the home was away: then the unlock is retried in the background. Waiters are served in order; a signal
// ends a wait in less than a second. A flock that is converted and must wait, or fails with LOCK_NB, gives up the old
// lock, as flock(2) says. F_GETLK returns the pid of the process, or for a process on another node the pid of this
// mount. EDEADLK is detected among the files of one home only. A node that was given up and returns has lost its locks
// if others took them meanwhile, and its processes are not notified. Files of a dataset and directories are locked on
// this node only.

// lockOwners is the set of owners of locks made through a handle. When the handle is released, these locks end: locks
// of open file descriptions belong to the handle. The locks of a process ended when it closed the handle, and it may
// have locked again through another handle: Flush has removed that owner here.
type lockOwners struct {
	mu  sync.Mutex
	all map[lockOwner]struct{} // under mu
}

type lockOwner struct {
	kind metadata.LockKind
	id   uint64
}

// take removes and returns all owners.
func (o *lockOwners) take() map[lockOwner]struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.all
	o.all = nil
	return all
}

// lockOf translates a request. The owner of a flock is the handle: the kernel reuses its own number for the next handle
// as soon as this one is closed, and the release may be answered after the next handle has locked.
func lockOf(in *fuse.LkIn) (metadata.Lock, error) {
	l := metadata.Lock{Owner: in.Owner, Start: in.Lk.Start, End: in.Lk.End, PID: in.Lk.Pid}
	if in.LkFlags&fuse.FUSE_LK_FLOCK != 0 {
		l.Kind, l.Owner = metadata.FlockLock, in.Fh
	}
	switch in.Lk.Typ {
	case syscall.F_RDLCK:
		l.Type = metadata.ReadLock
	case syscall.F_WRLCK:
		l.Type = metadata.WriteLock
	case syscall.F_UNLCK:
	default:
		return l, fmt.Errorf("lock of type %d: %w", in.Lk.Typ, syscall.EINVAL)
	}
	return l, nil
}

// GetLk serves F_GETLK of fcntl. A process of another node has no pid here: the answer then has the pid of this
// process.
func (s *fsys) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	return s.call(opGetlk, cancel, &in.InHeader, func(ctx context.Context) error {
		ino := metadata.Ino(in.NodeId)
		if virtual(ino) {
			return syscall.EINVAL
		}
		l, err := lockOf(in)
		if err != nil {
			return err
		}
		node, h, err := s.client.TestLock(ctx, ino, l)
		if err != nil {
			return stale(err)
		}
		out.Lk = fuse.FileLock{Start: h.Start, End: h.End, Pid: h.PID, Typ: syscall.F_UNLCK}
		switch h.Type {
		case metadata.ReadLock:
			out.Lk.Typ = syscall.F_RDLCK
		case metadata.WriteLock:
			out.Lk.Typ = syscall.F_WRLCK
		}
		if node != s.client.Self() {
			out.Lk.Pid = uint32(os.Getpid())
		}
		return nil
	})
}

// SetLk serves flock and F_SETLK of fcntl.
func (s *fsys) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return s.lock(opSetlk, cancel, in, false)
}

// SetLkw serves flock and F_SETLKW of fcntl. A signal ends it.
func (s *fsys) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return s.lock(opSetlkw, cancel, in, true)
}

func (s *fsys) lock(o op, cancel <-chan struct{}, in *fuse.LkIn, wait bool) fuse.Status {
	return s.call(o, cancel, &in.InHeader, func(ctx context.Context) error {
		ino := metadata.Ino(in.NodeId)
		h, err := s.takeover.handle(ctx, in.Fh)
		if err != nil {
			return err
		}
		if virtual(ino) {
			return syscall.EINVAL
		}
		l, err := lockOf(in)
		if err != nil {
			return err
		}
		who := lockOwner{l.Kind, l.Owner}
		added := l.Type != metadata.Unlocked && h.locked(who)
		err = s.client.Lock(ctx, ino, l, wait)
		switch {
		case err == nil && l.Type == metadata.Unlocked && l.Start == 0 && l.End >= wholeFile,
			added && (errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EDEADLK)):
			h.unlocked(who)
		}
		return stale(err)
	})
}

// wholeFile is the end of a lock without one.
const wholeFile = 1<<63 - 1

// locked adds an owner that may have locks through h; it returns false if h had it already.
func (h *handle) locked(who lockOwner) bool {
	h.locks.mu.Lock()
	defer h.locks.mu.Unlock()
	_, had := h.locks.all[who]
	if h.locks.all == nil {
		h.locks.all = make(map[lockOwner]struct{})
	}
	h.locks.all[who] = struct{}{}
	h.slot.Set(handover.Locked)
	return !had
}

// unlocked removes who from the owners that may have locks through h.
func (h *handle) unlocked(who lockOwner) {
	h.locks.mu.Lock()
	defer h.locks.mu.Unlock()
	if delete(h.locks.all, who); len(h.locks.all) == 0 {
		h.slot.Clear(handover.Locked)
	}
}

// unlock ends the locks of a handle that is released.
func (s *fsys) unlock(ctx context.Context, ino metadata.Ino, h *handle) {
	for o := range h.locks.take() {
		if err := s.client.UnlockAll(ctx, ino, o.kind, o.id); err != nil {
			s.fail(opSetlk, uint64(ino), err) // the home ends them when it learns of the close
		}
	}
}
