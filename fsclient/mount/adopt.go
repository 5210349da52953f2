package mount

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/fsclient/handover"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
)

// A connection to the kernel can outlive its daemon (Config.Handover, Config.Adopt): the keeper keeps its descriptor,
// and the next daemon serves it. Processes then keep their open files, working directories and mappings, and their
// calls wait.
//
//	named by the kernel          action of the next daemon
//	inode, directory handle      none: the number is our inode number
//	file handle                  opens the inode again, at the first use or soon
//	request that was read and    the keeper makes the kernel send it again (resent); a change
//	not answered                 that is not repeatable fails with EIO: done or not done
//	INIT                         answered from the recorded settings, over a socket in place of the device
//
// State lost with the daemon causes EIO on the affected handle only. Where writes may not have arrived, the next write,
// fsync or close returns EIO; if that is a write, the one after it does too, because the kernel drops the error of the
// rest of a larger write. If locks were held, the inode was removed, or another node has got the right to map the file,
// all calls return EIO.

// resent marks the number of a request that the kernel sends again (Linux 6.9).
const resent = 1 << 63

// settleAfter is the delay after a write at which settle checks whether the write has arrived.
const settleAfter = 500 * time.Millisecond

// takeover is the state that this daemon takes over from earlier daemons and leaves to the next one.
type takeover struct {
	s       *fsys
	table   *handover.Table // nil: the connection ends with this process
	written writtenHandles

	mu       sync.Mutex
	files    map[uint64]*earlierFile // under mu: files of earlier daemons that are not open again yet, by handle
	requests map[uint64]uint64       // under mu: the handle that each request opened
}

type earlierFile struct {
	slot    *handover.Slot
	backing *backing   // of a dataset, without passthrough
	turn    wait.Mutex // held by the call that opens or releases the file
}

// writtenHandles is the set of handles with writes that may not have arrived.
type writtenHandles struct {
	changed wait.Signal
	mu      sync.Mutex
	all     map[*handle]struct{} // under mu
}

// newServer makes a server. It records the connection's settings for the next daemon or, with Adopt, makes the server
// from those an earlier daemon recorded.
func (m *Mount) newServer() (*fuse.Server, error) {
	if m.cfg.Adopt {
		return m.newAdopted()
	}
	server, err := fuse.NewServer(m.fs, m.cfg.Dir, m.options())
	if err != nil || m.fs.takeover.table == nil {
		return server, err
	}
	k := server.KernelSettings()
	return server, m.fs.takeover.table.SetSettings(unsafe.Slice((*byte)(unsafe.Pointer(k)), unsafe.Sizeof(*k)))
}

// newAdopted makes a server for a connection that is already initialised. The FUSE library expects to answer an INIT
// request first: it reads the recorded one from a socket, which the device then replaces.
func (m *Mount) newAdopted() (*fuse.Server, error) {
	fd, err := strconv.Atoi(strings.TrimPrefix(m.cfg.Dir, fdPrefix))
	if err != nil {
		return nil, fmt.Errorf("adopt %s: %w", m.cfg.Dir, syscall.EINVAL)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(pair[0])
	init := append([]byte(nil), m.fs.takeover.table.Settings()...)
	if len(init) < int(unsafe.Sizeof(fuse.InHeader{})) {
		return nil, errors.Join(fmt.Errorf("adopt %s: no settings: %w", m.cfg.Dir, syscall.EINVAL), unix.Close(pair[1]))
	}
	(*fuse.InHeader)(unsafe.Pointer(&init[0])).Length = uint32(len(init))
	dev, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, unix.Close(pair[1]))
	}
	defer unix.Close(dev)
	_, err = unix.Write(pair[0], init)
	if err = errors.Join(err, unix.Dup3(pair[1], fd, unix.O_CLOEXEC), unix.Close(pair[1])); err != nil {
		return nil, err
	}
	server, err := fuse.NewServer(m.fs, m.cfg.Dir, m.options())
	return server, errors.Join(err, unix.Dup3(dev, fd, unix.O_CLOEXEC))
}

func (t *takeover) init(s *fsys) {
	t.s = s
	t.files, t.requests = make(map[uint64]*earlierFile), make(map[uint64]uint64)
	t.written.changed, t.written.all = wait.NewSignal(), make(map[*handle]struct{})
}

// openTable maps the handover memory, and takes over its contents.
func (t *takeover) openTable(f *os.File, adopt bool) (err error) {
	if f == nil {
		return nil
	}
	if t.table, err = handover.Map(f, adopt); err != nil {
		return err
	}
	t.s.handles.init(t.table.FirstHandle())
	open, _ := t.table.Slots()
	for _, slot := range open {
		o := slot.Open()
		t.files[o.FH] = &earlierFile{slot: slot, turn: wait.NewMutex()}
		t.requests[o.Request] = o.FH
	}
	return nil
}

// add adds a handle and records it.
func (t *takeover) add(h *handle, in *fuse.InHeader, ino metadata.Ino, flags uint32) uint64 {
	fh := t.s.handles.add(h)
	o := handover.Open{FH: fh, Ino: ino, Request: in.Unique &^ resent, Flags: flags}
	if h.direct {
		o.State |= handover.Direct
	}
	if h.backing != nil {
		o.Backing = h.backing.id.Load()
	}
	h.slot = t.table.Add(o) // the kernel does not know the handle yet
	return fh
}

// handle returns the open file or directory of a request.
func (t *takeover) handle(ctx context.Context, fh uint64) (*handle, error) {
	h, err := t.s.handles.get(fh)
	if err != nil && t.s.cfg.Adopt {
		h, err = t.reopen(ctx, fh)
	}
	if err == nil && h.broken != nil {
		return nil, h.broken
	}
	return h, err
}

// errEarlier is the error of a handle that the previous daemon had open and that cannot be opened again.
var errEarlier = fmt.Errorf("open file of the previous daemon: %w", syscall.EIO)

// reopen opens a file of an earlier daemon again.
func (t *takeover) reopen(ctx context.Context, fh uint64) (*handle, error) {
	e := t.earlier(fh)
	if e == nil {
		if h, err := t.s.handles.get(fh); err == nil { // another call was faster
			return h, nil
		}
		return nil, errEarlier
	}
	if err := e.turn.Lock(ctx); err != nil {
		return nil, err
	}
	defer e.turn.Unlock()
	if t.earlier(fh) != e { // another call was faster, or it was released
		return t.s.handles.get(fh)
	}
	h, err := t.openAgain(ctx, e.slot)
	if err != nil {
		return nil, err
	}
	h.slot, h.backing = e.slot, e.backing
	t.s.handles.restore(fh, h)
	t.drop(fh)
	return h, nil
}

func (t *takeover) earlier(fh uint64) *earlierFile {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.files[fh]
}

// waits reports whether fh must be opened again in the background. Files of datasets are opened again at their next use
// instead.
func (t *takeover) waits(fh uint64) bool {
	e := t.earlier(fh)
	return e != nil && !e.slot.Open().Ino.Sealed()
}

func (t *takeover) drop(fh uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.files, fh)
}

// openAgain makes a handle. Its errors are transient: the caller may retry.
func (t *takeover) openAgain(ctx context.Context, slot *handover.Slot) (*handle, error) {
	o := slot.Open()
	broken := func(why string, err error) *handle {
		t.s.log.WithError(err).WithField("inode", o.Ino.String()).Warn("open file of the previous daemon not taken over, its calls fail with EIO: " + why)
		return &handle{broken: errEarlier}
	}
	switch {
	case virtual(o.Ino):
		b, err := t.s.virtualContent(o.Ino)
		return &handle{content: b}, err
	case o.State&handover.Locked != 0:
		return broken("it held locks", nil), nil
	case o.Backing != 0: // no passthrough in this daemon; the kernel reads the file by itself
		return &handle{}, nil
	}
	f, err := t.s.client.Reopen(ctx, o.Ino, mappable(o.Flags))
	switch {
	case errors.Is(err, syscall.ESTALE) && !o.Ino.Sealed():
		if _, e := t.s.client.Getattr(ctx, o.Ino); errors.Is(e, syscall.ENOENT) {
			return broken("it no longer exists", err), nil
		}
		return nil, err
	case err != nil:
		return nil, err
	}
	h := &handle{file: f, direct: o.State&handover.Direct != 0}
	if mappable(o.Flags) && !o.Ino.Sealed() && !h.direct && !f.Maps() {
		return broken("another node may have mapped it", f.Close(ctx)), nil
	}
	h.syncer = f.Writer()
	if o.Flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		h.writer = h.syncer
		h.writer.ForWriting()
		h.appends = o.Flags&syscall.O_APPEND != 0
	}
	if h.writer != nil {
		var lost error
		if o.State&handover.Dirty != 0 {
			t.s.log.WithField("inode", o.Ino.String()).Warn("writes to an open file may be lost with the previous daemon: its next write, fsync or close fails")
			lost = errEarlier
		}
		h.writer.Adopted(lost, o.State&handover.Untold == 0)
	}
	return h, nil
}

// remove removes a handle and returns it, or nil if it is not open here.
func (t *takeover) remove(fh uint64) *handle {
	h := t.s.handles.remove(fh)
	if h == nil {
		if e := t.earlier(fh); e != nil {
			_ = e.turn.Lock(context.Background()) // waits no longer than one call
			defer e.turn.Unlock()
			t.drop(fh)
			if h = t.s.handles.remove(fh); h == nil {
				t.s.backings.close(e.backing)
				e.slot.Free()
			}
		}
	}
	if h != nil {
		h.slot.Free()
		t.written.drop(h)
	}
	return h
}

// forgetRequest releases the handle that a request opened if the kernel never got the answer: the kernel asks again.
func (t *takeover) forgetRequest(unique uint64) {
	t.mu.Lock()
	fh, ok := t.requests[unique&^resent]
	delete(t.requests, unique&^resent)
	e := t.files[fh]
	t.mu.Unlock()
	if !ok {
		return
	}
	var ino metadata.Ino
	if e != nil {
		ino = e.slot.Open().Ino
	} else if h, err := t.s.handles.get(fh); err == nil && h.file != nil {
		ino = h.file.Ino()
	}
	release(t.s, ino, fh)
}

// repeatable reports whether a request may be executed twice. Others that were in flight when the daemon died fail with
// EIO.
func (o op) repeatable() bool {
	switch o {
	case opSymlink, opMknod, opMkdir, opUnlink, opRmdir, opRename, opLink, opSetxattr, opRemovexattr:
		return false
	}
	return true
}

// errResent is the error of a resent request that the previous daemon may already have executed.
var errResent = fmt.Errorf("in flight when the previous daemon ended, so it may or may not have taken effect: %w", syscall.EIO)

// again prepares for a request that the kernel sends again.
func (t *takeover) again(o op, h *fuse.InHeader) error {
	if o == opOpen || o == opCreate {
		t.forgetRequest(h.Unique)
	}
	if !o.repeatable() {
		return errResent
	}
	return nil
}

// restoreFiles opens the files of earlier daemons again, until all are open or ctx ends.
func (t *takeover) restoreFiles(ctx context.Context) {
	t.mu.Lock()
	left := slices.Collect(maps.Keys(t.files))
	t.mu.Unlock()
	n, began, broken := len(left), time.Now(), 0
	for b := retry.New(settleAfter/10, 2*time.Second, 0.5); len(left) > 0; {
		var mu sync.Mutex
		var failed []uint64
		_ = wait.Each(ctx, left, func(ctx context.Context, fh uint64) error {
			h, err := t.reopen(ctx, fh)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && h.broken != nil:
				broken++
			case err != nil && t.waits(fh):
				failed = append(failed, fh)
			}
			return nil
		})
		if left = failed; len(left) > 0 && !b.Wait(ctx) {
			return
		}
	}
	t.s.log.WithFields(logrus.Fields{"files": n, "lost": broken, "took": time.Since(began).Round(time.Millisecond)}).
		Info("took over the kernel connection of the previous daemon: open files stay usable")
}

// settle records in the handover table whether writes by h may not have arrived (Dirty), and whether the file's home
// does not know of all changes (Untold); the next daemon needs both. It is called before each write is acknowledged,
// and again later until neither holds.
func (h *handle) settle() (settled bool) {
	if h.slot == nil || h.writer == nil {
		return true
	}
	h.settling.Lock()
	defer h.settling.Unlock()
	told := h.writer.Told() // asked first, because changes may arrive meanwhile
	var state handover.State
	if !told {
		state |= handover.Untold
	}
	if !h.writer.Clean() {
		state |= handover.Dirty
	}
	h.slot.Set(state)
	h.slot.Clear((handover.Dirty | handover.Untold) &^ state)
	return state == 0
}

// settle settles h now, or later.
func (t *takeover) settle(h *handle) {
	if !h.settle() {
		t.written.add(h)
	}
}

func (w *writtenHandles) add(h *handle) {
	w.mu.Lock()
	_, had := w.all[h]
	w.all[h] = struct{}{}
	w.mu.Unlock()
	if !had {
		w.changed.Set()
	}
}

func (w *writtenHandles) drop(h *handle) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, h)
}

func (w *writtenHandles) pending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.all) > 0
}

// settle settles the handles whose writes have arrived.
func (w *writtenHandles) settle() time.Duration {
	w.mu.Lock()
	all := slices.Collect(maps.Keys(w.all))
	clear(w.all) // a write that begins now adds its handle again
	w.mu.Unlock()
	for _, h := range all {
		if !h.settle() {
			w.add(h)
		}
	}
	return settleAfter
}

// background runs the tasks of a connection that can be handed over, until ctx ends.
func (t *takeover) background(ctx context.Context, wg *sync.WaitGroup) {
	if t.table == nil {
		return
	}
	wg.Go(func() { wait.Batches(ctx, t.written.changed, settleAfter, t.written.pending, t.written.settle) })
	if t.s.cfg.Adopt {
		wg.Go(func() { t.restoreFiles(ctx) })
	}
}
