package mount

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// lockOwners is whose locks were made through a handle. When it is released they
// end: those of open file descriptions are the handle's. Those of a process have
// ended when it closed the handle, and it may have locked again through another
// one since: they are not here any more.
type lockOwners struct {
	mu  sync.Mutex
	all map[lockOwner]struct{} // under mu
}

type lockOwner struct {
	kind metadata.LockKind
	id   uint64
}

func (o *lockOwners) add(l metadata.Lock) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = make(map[lockOwner]struct{})
	}
	o.all[lockOwner{l.Kind, l.Owner}] = struct{}{}
}

func (o *lockOwners) remove(who lockOwner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, who)
}

// take is all of them, and there are none any more.
func (o *lockOwners) take() map[lockOwner]struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.all
	o.all = nil
	return all
}

// lockOf translates what the kernel wants. A lock of flock is the handle's: the
// kernel's own number of it is that of another handle as soon as this one is
// closed, and its release may be answered after the other one has locked.
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

// GetLk is fcntl's F_GETLK. The process of another node has no number here:
// then it is that of the process which has the mount.
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
			return held(err)
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

// SetLk is flock and fcntl's F_SETLK.
func (s *fsys) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return s.lock(opSetlk, cancel, in, false)
}

// SetLkw is flock and fcntl's F_SETLKW. A signal ends it.
func (s *fsys) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return s.lock(opSetlkw, cancel, in, true)
}

func (s *fsys) lock(o op, cancel <-chan struct{}, in *fuse.LkIn, wait bool) fuse.Status {
	return s.call(o, cancel, &in.InHeader, func(ctx context.Context) error {
		ino := metadata.Ino(in.NodeId)
		h, err := s.handles.get(in.Fh)
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
		if l.Type != metadata.Unlocked {
			h.locks.add(l)
		}
		return held(s.client.Lock(ctx, ino, l, wait))
	})
}

// unlock ends the locks that were made through a handle, which nobody uses any
// more.
func (s *fsys) unlock(ctx context.Context, ino metadata.Ino, h *handle) {
	for o := range h.locks.take() {
		if err := s.client.UnlockAll(ctx, ino, o.kind, o.id); err != nil {
			s.failed(opSetlk, uint64(ino), err) // the home ends them when it hears that the file is closed
		}
	}
}
