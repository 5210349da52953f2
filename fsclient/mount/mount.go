package mount

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	maxWrite      = 512 << 10 // bytes of one READ or WRITE: what is copied again is still in a processor's cache
	maxBackground = 64        // read-ahead and other requests that nobody waits for
	readAhead     = 4 << 20   // bytes ahead of who reads in sequence: some requests at once
	fsName        = "bivouac"
	directReads   = 128 // threads that are counted with a read of their own past the page cache
	directWrites  = 256 // and with a write: it may be stuck, and no other thread for that
	idleReaders   = 17  // go-fuse's, each with memory for a request
	fdPrefix      = "/dev/fd/"
)

// Config says what is mounted where. Client and Dir are required.
type Config struct {
	Client *fsclient.Client
	// Dir is the mount point, or /dev/fd/N if somebody else has mounted and N
	// is the descriptor of /dev/fuse.
	Dir string
	// Point is then where that is mounted.
	Point string
	// AllowOther lets other users than the one who mounts reach the mount; the
	// mode of its root still decides. It needs root or user_allow_other.
	AllowOther bool
	UID, GID   uint32 // the job's user, who owns the root
	// Virtual is the content of .bivouac's files; nil is no content.
	Virtual func(name string) ([]byte, error)
	// Backer has the privilege that passthrough wants; nil asks the kernel
	// directly, if this process may.
	Backer Backer
	// MaxBackings is how many files stay registered with the kernel for
	// passthrough: 0 is 65,536, less than 0 is none.
	MaxBackings int
	Log         *logrus.Entry
	Debug       bool // log every request
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
	if c.MaxBackings == 0 {
		c.MaxBackings = maxBackings
	}
	if c.Virtual == nil {
		c.Virtual = func(string) ([]byte, error) { return nil, nil }
	}
	if c.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		c.Log = logrus.NewEntry(l)
	}
	return nil
}

// Mount is one mounted client.
type Mount struct {
	cfg    Config
	fs     *fsys
	server *fuse.Server
	served chan struct{} // closed when Serve returns

	covered atomic.Bool // something may be mounted below
}

// New mounts. Who uses the mount waits until Serve runs.
func New(cfg Config) (*Mount, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := &Mount{cfg: cfg, fs: newFS(cfg, time.Now()), served: make(chan struct{})}
	server, err := fuse.NewServer(m.fs, cfg.Dir, m.options())
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
		// One of its requests takes 5,000 bytes more than its own. What is counted
		// for it beyond that must not add up to another one.
		MaxInflightRequestBytes: maxWrites * (maxWrite + 5<<10),
		FsName:                  fsName,
		Name:                    fsName,
		DirectMount:             root && !m.adopted(),
		DirectMountStrict:       root && !m.adopted(),
		// With the second one the kernel does not ask for security.capability before
		// each write to its pages, and says who may not keep setuid and setgid.
		ExtraCapabilities: fuse.CAP_DIRECT_IO_ALLOW_MMAP | fuse.CAP_HANDLE_KILLPRIV_V2,
		Logger:            log.New(&logWriter{m.cfg.Log}, "", 0),
		Debug:             m.cfg.Debug,
		PanicHandler:      m.panicked,
	}
}

// explain adds what to do to the errors of mounting that a user can mend.
func explain(dir string, err error) error {
	if _, serr := os.Stat("/dev/fuse"); serr != nil {
		return fmt.Errorf("%w: this kernel has no FUSE: load the module fuse", err)
	}
	if s := err.Error(); strings.TrimSpace(s) != s { // of go-fuse, on behalf of fusermount3
		err = errors.New(strings.TrimSpace(s))
	}
	if serr := unix.Access("/dev/fuse", unix.R_OK|unix.W_OK); serr != nil && !strings.HasPrefix(dir, fdPrefix) {
		return fmt.Errorf("%w: this user may not open /dev/fuse: as root, chmod 666 /dev/fuse", err)
	}
	if _, serr := os.Stat(dir); errors.Is(serr, syscall.ENOTCONN) {
		return fmt.Errorf("%w: an earlier mount was left there: umount -l %s", err, dir)
	}
	return err
}

// adopted reports whether somebody else has mounted.
func (m *Mount) adopted() bool { return strings.HasPrefix(m.cfg.Dir, fdPrefix) }

// Serve answers the kernel until the file system is unmounted. It is called
// once.
//
// The process that serves a mount should leave the mount alone. If it is killed
// while one of its own threads waits for an answer, that thread keeps the
// process and the connection for ever, until somebody aborts the connection
// (umount -f, fusectl). And a page fault in a mapping of its own mount can stop
// the scheduler that has to serve it.
func (m *Mount) Serve() {
	defer close(m.served)
	defer m.fs.pipes.close()
	m.server.Serve()
}

// Ready waits until Serve answers. A process that uses its own mount calls it
// first: it makes Go's poller safe there, which else asks the mount whether a
// file can be polled, on the thread that would have to answer.
func (m *Mount) Ready() error {
	if err := m.server.WaitMount(); err != nil || m.adopted() && m.cfg.Point == "" {
		return err
	}
	if m.adopted() {
		return refusePoll(m.cfg.Point)
	}
	if err := raiseReadAhead(m.cfg.Dir); err != nil {
		m.cfg.Log.WithError(err).Debug("the read-ahead stays as it is")
	}
	return nil
}

// raiseReadAhead has the kernel ask ahead for more than one request, which is
// by default an eighth of one. Only root may; who has mounted does it. The
// mount itself is not asked for its number: a process that is killed while it
// waits for its own mount does not die.
func raiseReadAhead(dir string) error {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_STATX_DONT_SYNC|unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return err
	}
	f := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", st.Dev_major, st.Dev_minor)
	return os.WriteFile(f, []byte(strconv.Itoa(readAhead>>10)), 0)
}

// refusePoll has the kernel learn that the mount at point knows no poll. It is
// what go-fuse does where it has mounted by itself.
func refusePoll(point string) error {
	fd, err := unix.Open(filepath.Join(point, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount at %s: %w", point, err)
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	_, _ = unix.Poll(fds, 0) // asking is all
	return unix.Close(fd)
}

// Wait waits until Serve has returned.
func (m *Mount) Wait() { <-m.served }

// Unmount takes the mount away and waits until Serve has returned. A mount
// that is in use is detached instead: nobody new can enter it, and Serve goes
// on until the last one leaves. A mount that somebody else made is his to take
// away; then Unmount does nothing. Serve must have been called.
func (m *Mount) Unmount() error {
	if m.adopted() {
		return nil
	}
	if m.covered.Load() {
		return m.unmountAll()
	}
	err := m.server.Unmount()
	if err == nil {
		<-m.served
		return nil
	}
	if derr := unix.Unmount(m.cfg.Dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); derr != nil {
		return fmt.Errorf("unmount %s: %w", m.cfg.Dir, err)
	}
	m.cfg.Log.WithError(err).Warn("mount was in use and is detached")
	return nil
}

// uncoverTime is how long those who use a mount with covers may take to leave.
const uncoverTime = time.Second

// unmountAll takes the covers away with the mount, at one blow: to take away one
// by one this process would have to look their names up in its own mount.
func (m *Mount) unmountAll() error {
	if err := unix.Unmount(m.cfg.Dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", m.cfg.Dir, err)
	}
	t := time.NewTimer(uncoverTime)
	defer t.Stop()
	select {
	case <-m.served:
	case <-t.C:
		m.cfg.Log.Warn("mount was in use and is detached")
	}
	return nil
}

// Stats counts the requests of the kernel.
func (m *Mount) Stats() Stats {
	s := m.fs.stats.stats()
	s.Pipes = m.fs.pipes.inUse()
	return s
}

// DropPages has the kernel forget what it has read of files of datasets. It waits
// for reads of them that are under way.
func (m *Mount) DropPages(files []metadata.Ino) { m.fs.dropPages(files) }

// Uncover has the kernel forget the name of a dataset, and so take away all that
// is mounted over it: covers and views. Who uses them can go on.
func (m *Mount) Uncover(name string) {
	_ = m.server.EntryNotify(uint64(inoData), name) // what the kernel does not know is no error
}

// panicked makes a bug EIO for the one who met it.
func (m *Mount) panicked(r any) fuse.Status {
	m.fs.stats.panics.Add(1)
	m.cfg.Log.WithField("panic", fmt.Sprint(r)).WithField("stack", string(debug.Stack())).Error("a request failed by a bug of ours")
	return fuse.EIO
}

// logWriter takes the lines of the FUSE library.
type logWriter struct{ log *logrus.Entry }

func (w *logWriter) Write(p []byte) (int, error) {
	w.log.Debug(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// Dir is where it is mounted.
func (m *Mount) Dir() string { return m.cfg.Dir }
