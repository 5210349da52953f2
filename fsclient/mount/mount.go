package mount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

const (
	maxWrite      = 512 << 10 // bytes of one READ or WRITE: fits in a processor's cache for the second copy
	maxBackground = 64        // read-ahead and other requests on which no process waits
	readAhead     = 4 << 20   // bytes of sequential read-ahead: several requests at once
	fsName        = "bivouac"
	directReads   = 128 // admitted threads with a read that bypasses the page cache
	directWrites  = 256 // likewise with a write: a write that hangs must not stop others
	idleReaders   = 17  // go-fuse's, each with memory for a request
	fdPrefix      = "/dev/fd/"
)

// Config says which client is mounted where. Client and Dir are required.
type Config struct {
	Client *fsclient.Client
	// Dir is the mount point, or /dev/fd/N for a mount that another process has made with the descriptor N of
	// /dev/fuse.
	Dir string
	// Point is the mount point in that case.
	Point string
	// AllowOther lets users other than the mounting one use the mount, subject to the mode of its root. It needs root
	// or user_allow_other.
	AllowOther bool
	UID, GID   uint32 // the job's user, the owner of the root
	// Virtual returns the content of .bivouac's files; nil: no content.
	Virtual func(name string) ([]byte, error)
	// Prefetch returns the prefetch of a dataset, or nil if it has none. If Prefetch is nil, no dataset has one.
	Prefetch func(ds metadata.DatasetID) Prefetch
	// Hidden reports whether a dataset's name is hidden from programs, because its cover or view is still being made;
	// nil: no name is hidden. HelperGID is the group ID of the mount helper, which can look the name up.
	Hidden    func(cluster.Dataset) bool
	HelperGID uint32
	// Unsettled says that datasets may exist that the client does not know yet, until Settle is called: lookups of
	// their names return EIO, not ENOENT. A program that read them through the previous daemon must not take them for
	// removed.
	Unsettled bool
	// Backer has the privilege that passthrough needs; nil: files are registered directly, if this process may.
	Backer Backer
	// Handover is the memory that is handed to the daemon that serves the connection after this process; nil: none
	// will. New takes ownership.
	Handover *os.File
	// Adopt says that an earlier daemon has served the connection, and has left its state in Handover.
	Adopt bool
	// MaxBackings is how many files stay registered with the kernel for passthrough: 0 means 65,536, a negative number
	// none.
	MaxBackings int
	Log         *logrus.Entry
}

func (c *Config) validate() error {
	var errs []error
	if c.Client == nil {
		errs = append(errs, errors.New("no client"))
	}
	if c.Dir == "" {
		errs = append(errs, errors.New("no mount point"))
	}
	if len(errs) > 0 {
		return fmt.Errorf("mount: %w: %w", errors.Join(errs...), syscall.EINVAL)
	}
	c.MaxBackings = cmp.Or(c.MaxBackings, maxBackings)
	if c.Hidden == nil {
		c.Hidden = func(cluster.Dataset) bool { return false }
	}
	if c.Virtual == nil {
		c.Virtual = func(string) ([]byte, error) { return nil, nil }
	}
	c.Log = cmp.Or(c.Log, logrus.NewEntry(&logrus.Logger{Out: io.Discard}))
	return nil
}

// Mount is one mounted client.
type Mount struct {
	cfg    Config
	fs     *fsys
	server *fuse.Server
	served chan struct{} // closed when Serve returns

	covered atomic.Bool // covers may be mounted below
}

// New mounts a client. Uses of the mount wait until Serve runs.
func New(cfg Config) (*Mount, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := &Mount{cfg: cfg, fs: newFS(cfg, time.Now()), served: make(chan struct{})}
	if err := m.fs.takeover.openTable(cfg.Handover, cfg.Adopt); err != nil {
		return nil, fmt.Errorf("mount at %s: %w", cfg.Dir, err)
	}
	server, err := m.newServer()
	if err != nil {
		return nil, fmt.Errorf("mount at %s: %w", cfg.Dir, explain(cfg.Dir, err))
	}
	m.server = server
	return m, nil
}

func (m *Mount) options() *fuse.MountOptions {
	root := os.Geteuid() == 0
	return &fuse.MountOptions{
		AllowOther:    m.cfg.AllowOther,
		Options:       []string{"default_permissions"},
		EnableLocks:   true,
		MaxBackground: maxBackground,
		MaxWrite:      maxWrite,
		// The library adds about 5,000 bytes to the size of a request. The slack must not add up to one more request.
		MaxInflightRequestBytes: maxWrites * (maxWrite + 5<<10),
		FsName:                  fsName,
		Name:                    fsName,
		DirectMount:             root && !m.premounted(),
		DirectMountStrict:       root && !m.premounted(),
		// Without DIRECT_IO_ALLOW_MMAP descriptors that bypass the page cache cannot be mapped shared (opened). With
		// KILLPRIV_V2 the kernel does not ask for security.capability before each write to its pages, and flags the
		// writes that clear setuid and setgid.
		ExtraCapabilities: fuse.CAP_HANDLE_KILLPRIV_V2,
		Logger:            log.New(&logWriter{m.cfg.Log}, "", 0),
		PanicHandler:      m.panicked,
	}
}

// explain adds advice to mount errors that a user can fix.
func explain(dir string, err error) error {
	if _, serr := os.Stat("/dev/fuse"); serr != nil {
		return fmt.Errorf("%w: this kernel has no FUSE: modprobe fuse", err)
	}
	if s := err.Error(); strings.TrimSpace(s) != s { // go-fuse returns it on behalf of fusermount3
		err = errors.New(strings.TrimSpace(s))
	}
	if serr := unix.Access("/dev/fuse", unix.R_OK|unix.W_OK); serr != nil && !strings.HasPrefix(dir, fdPrefix) {
		return fmt.Errorf("%w: this user may not open /dev/fuse: as root, chmod 666 /dev/fuse", err)
	}
	if _, serr := os.Stat(dir); errors.Is(serr, syscall.ENOTCONN) {
		return fmt.Errorf("%w: a stale mount is in the way: umount -l %s", err, dir)
	}
	return err
}

// premounted reports whether another process has mounted the file system.
func (m *Mount) premounted() bool { return strings.HasPrefix(m.cfg.Dir, fdPrefix) }

// Serve answers the kernel until the file system is unmounted. It is called once.
//
// A process must not use the mount that it serves. If it is killed while one of its own threads waits for an answer,
// that thread keeps the process and the connection alive until the connection is aborted (umount -f, fusectl). And a
// page fault in a mapping of its own mount can stop the Go scheduler that should serve it.
func (m *Mount) Serve() {
	defer close(m.served)
	defer m.fs.pipes.close()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	m.fs.takeover.background(ctx, &wg)
	m.server.Serve()
}

// Ready waits until Serve answers. A process that does use its own mount (a test) calls it first, to make Go's poller
// safe: the poller would otherwise ask the mount whether a file can be polled, on the thread that must answer.
func (m *Mount) Ready() error {
	if err := m.server.WaitMount(); err != nil || m.premounted() && m.cfg.Point == "" {
		return err
	}
	if m.premounted() {
		return refusePoll(m.cfg.Point)
	}
	if err := raiseReadAhead(m.cfg.Dir); err != nil {
		m.cfg.Log.WithError(err).Debug("kernel read-ahead not raised: sequential reads are slower")
	}
	return nil
}

// raiseReadAhead raises the kernel's read-ahead from an eighth of a request to several requests. Only root may, so the
// mounting process does it. AT_STATX_DONT_SYNC avoids a request to the mount: a process killed while it waits for its
// own mount does not die.
func raiseReadAhead(dir string) error {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_STATX_DONT_SYNC|unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return err
	}
	f := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", st.Dev_major, st.Dev_minor)
	return os.WriteFile(f, []byte(strconv.Itoa(readAhead>>10)), 0)
}

// refusePoll makes the kernel learn that the mount at point does not support poll, as go-fuse does for its own mounts.
func refusePoll(point string) error {
	fd, err := unix.Open(filepath.Join(point, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount at %s: %w", point, err)
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	_, _ = unix.Poll(fds, 0) // the request is enough
	return unix.Close(fd)
}

// Wait waits until Serve has returned.
func (m *Mount) Wait() { <-m.served }

// Unmount unmounts and waits until Serve has returned. A mount that is in use is detached instead: it gets no new
// users, and Serve continues until the last one leaves. A mount made by another process is left to that process. Serve
// must have been called.
func (m *Mount) Unmount() error {
	if m.premounted() {
		return nil
	}
	if m.covered.Load() {
		return m.unmountCovered()
	}
	err := m.server.Unmount()
	if err == nil {
		<-m.served
		return nil
	}
	if derr := unix.Unmount(m.cfg.Dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); derr != nil {
		return fmt.Errorf("unmount %s: %w", m.cfg.Dir, err)
	}
	m.cfg.Log.WithError(err).Warn("mount is in use: detached; it is removed when its last user exits")
	return nil
}

// detachTime is how long users of a mount with covers may take to leave.
const detachTime = time.Second

// unmountCovered detaches the mount and its covers. To unmount covers one by one, this process would need to look their
// names up in its own mount.
func (m *Mount) unmountCovered() error {
	if err := unix.Unmount(m.cfg.Dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", m.cfg.Dir, err)
	}
	t := time.NewTimer(detachTime)
	defer t.Stop()
	select {
	case <-m.served:
	case <-t.C:
		m.cfg.Log.Warn("mount is in use: detached; it is removed when its last user exits")
	}
	return nil
}

// Stats returns the counters of the kernel's requests.
func (m *Mount) Stats() Stats {
	s := m.fs.stats.stats()
	s.Pipes = m.fs.pipes.inUse()
	return s
}

// DropPages makes the kernel drop cached pages of files of datasets. It waits for reads
// of them that are in flight.
func (m *Mount) DropPages(files []metadata.Ino) { m.fs.dropPages(files) }

// Forget unregisters objects of this node that were removed: the kernel continues to read them by itself only while
// they are open.
func (m *Mount) Forget(files []metadata.Ino) { m.fs.backings.forget(files) }

// Uncover invalidates the name of a dataset in the kernel, which detaches all mounts over it: covers and kernel views.
// Processes in them can continue.
func (m *Mount) Uncover(name string) {
	_ = m.server.EntryNotify(uint64(inoData), name) // an unknown name is no error
}

// panicked turns a panic in a request into EIO.
func (m *Mount) panicked(r any) fuse.Status {
	m.fs.stats.panics.Add(1)
	m.cfg.Log.WithField("panic", fmt.Sprint(r)).WithField("stack", string(debug.Stack())).Error("internal error in a file operation: please report the stack")
	return fuse.EIO
}

// logWriter logs the lines of the FUSE library.
type logWriter struct{ log *logrus.Entry }

func (w *logWriter) Write(p []byte) (int, error) {
	w.log.Debug(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// Dir returns the mount point.
func (m *Mount) Dir() string { return m.cfg.Dir }
