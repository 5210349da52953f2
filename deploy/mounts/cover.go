package mounts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// FUSEType is the type of our mounts.
const FUSEType = "fuse.bivouac"

// readAhead is what the kernel reads ahead on our mounts, in KiB: some requests
// of the largest size at once, as in package mount.
const readAhead = 4096

// coverTime bounds the mounting of a cover.
const coverTime = 10 * time.Second

// maxRead is the most bytes of one request to read.
const maxRead = 1 << 20

// coverFD is where a helper has the socket to who wants the cover.
const coverFD = 3

// Cover is a read-only mount that is to lie over the directory data/Name of the
// mount at Base, for the user UID. The tree below Base is served by that user,
// so nothing there is believed, and nobody waits for it but a helper: a process
// that does nothing else and can be killed.
type Cover struct {
	Base, Name string
	UID, GID   uint32
}

func (c *Cover) validate() error {
	if c.Name == "" || c.Name == "." || c.Name == ".." || len(c.Name) > unix.NAME_MAX || strings.ContainsAny(c.Name, "/\x00") {
		return fmt.Errorf("cover of %q: not a name: %w", c.Name, syscall.EINVAL)
	}
	return nil
}

// Mount has a helper, which is program's command cover, mount c. It returns the
// descriptor of /dev/fuse that has to be served then, and end, which waits for
// the helper: that goes on until the cover is what is seen. When ctx ends it is killed;
// EBUSY is that it is there all the same. talk stays the caller's.
func (c Cover) Mount(ctx context.Context, program string, talk *os.File) (dev *os.File, end func() error, err error) {
	if err := c.validate(); err != nil {
		return nil, nil, err
	}
	h := helper{program: program, args: c.args("cover"), talk: talk, limit: coverTime}
	if dev, end, err = h.start(ctx); err != nil {
		return nil, nil, fmt.Errorf("cover of %s: %w", c.Name, err)
	}
	return dev, end, nil
}

// args is a command line. A name may begin as an option does.
func (c Cover) args(command string) []string {
	return []string{command, "--", c.Base, c.Name, fmt.Sprint(c.UID), fmt.Sprint(c.GID)}
}

// helper is a process that mounts.
type helper struct {
	program string
	args    []string
	talk    *os.File
	limit   time.Duration
}

// killTime is how long a helper that was killed may take to end. It does not if it waits
// for the answer of a connection that somebody holds, whom the daemon gave it to.
const killTime = 5 * time.Second

// start returns the descriptor of /dev/fuse that the helper has mounted, and end,
// which waits for it. The helper has until limit to say that its mount is in its
// place; then it may take the time that it wants to show it.
func (h helper) start(ctx context.Context) (dev *os.File, end func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	near, far, err := socketpair(unix.SOCK_SEQPACKET, "cover")
	if err != nil {
		cancel()
		return nil, nil, err
	}
	var said strings.Builder
	cmd := exec.CommandContext(ctx, h.program, h.args...)
	cmd.Stderr, cmd.Dir = &said, "/"
	cmd.Env = []string{"LANG=C.UTF-8"}
	cmd.ExtraFiles = []*os.File{far, h.talk} // coverFD, talkFD
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	_ = far.Close() // the helper has its own
	if err != nil {
		cancel()
		return nil, nil, errors.Join(err, near.Close())
	}
	until, ended := time.Now().Add(h.limit), make(chan struct{})
	go func() { // until the helper ends, whoever waits for that
		defer close(ended)
		_ = cmd.Wait() // it has said what is wrong
	}()
	end = func() error {
		defer cancel()
		defer near.Close() // the helper ends if nobody listens
		if awaitPlaced(ctx, near, until) != nil {
			cancel()
		}
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
		}
		return awaitKilled(ended, cmd.Process.Pid)
	}
	soon, stop := context.WithTimeout(ctx, coverTime)
	defer stop()
	if dev, err = receiveFile(soon, near); err != nil {
		cancel() // it may do something else
		if e := end(); e != nil {
			return nil, nil, errors.Join(err, e)
		}
		return nil, nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return dev, end, nil
}

// awaitKilled waits for a helper that was killed.
func awaitKilled(ended <-chan struct{}, pid int) error {
	t := time.NewTimer(killTime)
	defer t.Stop()
	select {
	case <-ended:
		return nil
	case <-t.C:
		return fmt.Errorf("process %d, which mounts, does not die: end who has its connection to /dev/fuse: %w", pid, unix.EBUSY)
	}
}

// awaitPlaced waits until the helper says that what it has mounted is in its place.
func awaitPlaced(ctx context.Context, conn *net.UnixConn, until time.Time) error {
	_ = conn.SetReadDeadline(until) // a socket has deadlines
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })()
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}

// placed is what the helper says then.
func placed() error { return unix.Sendmsg(coverFD, []byte{1}, nil, nil, unix.MSG_NOSIGNAL) }

// socketpair is two ends of a socket of that kind, one for somebody else.
func socketpair(kind int, name string) (near *net.UnixConn, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	far = os.NewFile(uintptr(fds[1]), name)
	f := os.NewFile(uintptr(fds[0]), name)
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		_ = far.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), far, nil
}

// receiveFile waits for one packet with one descriptor in it.
func receiveFile(ctx context.Context, conn *net.UnixConn) (*os.File, error) {
	if d, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(d) // a socket has deadlines
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return nil, fmt.Errorf("nothing was mounted: %w", syscall.EPROTO)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("nothing was mounted: %w", syscall.EPROTO)
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "/dev/fuse"), nil
}

// Help is the helper's work: it mounts c, hands its descriptor over, raises the
// read-ahead once the cover answers, and then shows it. If it does not answer, it
// is taken away. At last it lists what it shows, if it is asked to.
func (c Cover) Help() error {
	talk := os.NewFile(talkFD, "talk")
	defer talk.Close()
	s, err := c.make()
	if err == nil {
		if deep := hearDeep(talk); s != nil {
			defer s.close()
			s.dirs.deep = deep
		}
	}
	shown, err := show(talk, s, err)
	if !shown || s == nil {
		return err
	}
	if names, err := askedToVisit(talk); err == nil {
		return visitMount(s.hidden, names)
	}
	return nil // nobody wants it
}

// make mounts c beneath a screen, or without one if there is none.
func (c *Cover) make() (s *screen, err error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if canScreen() {
		s, err = c.mountBeneath()
	} else {
		err = c.mountUpon()
	}
	if err != nil {
		return nil, fmt.Errorf("cover of %s: %w", c.Name, err)
	}
	return s, nil
}

// mountBeneath mounts the cover where nobody sees it before the screen is lifted.
func (c *Cover) mountBeneath() (*screen, error) {
	s, err := c.screen()
	if err != nil {
		return nil, err
	}
	if err := c.hideIn(s); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (c *Cover) hideIn(s *screen) error {
	m, dev, err := c.connection()
	if err != nil {
		return err
	}
	defer unix.Close(m) // then it is in its place, or nowhere
	if err := answers(m, dev); err != nil {
		return err
	}
	return s.hide(m)
}

// answers hands the descriptor of a connection over, waits for its first answer, and
// raises its read-ahead.
func answers(m int, dev *os.File) error {
	err := handOver(dev)
	var st unix.Statx_t
	if err == nil {
		err = unix.Statx(m, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st)
	}
	if err == nil {
		_ = setReadAhead(fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor)) // it is only slower
	}
	return err
}

// handOver gives the descriptor of a connection to who wants to serve it.
func handOver(dev *os.File) error {
	err := unix.Sendmsg(coverFD, []byte{0}, unix.UnixRights(int(dev.Fd())), nil, unix.MSG_NOSIGNAL)
	_ = dev.Close() // who has it now serves it
	return err
}

// connection makes a mount of its own that is nowhere yet.
func (c *Cover) connection() (m int, dev *os.File, err error) {
	dev, err = os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return -1, nil, err
	}
	m, err = newMount("fuse", append(c.options(dev), [2]string{"source", "bivouac"}, [2]string{"subtype", "bivouac"}, [2]string{"ro"}))
	if err != nil {
		_ = dev.Close() // nothing is mounted by it
	}
	return m, dev, err
}

// options is what the kernel is told of a connection; what has no value is a flag.
func (c *Cover) options(dev *os.File) [][2]string {
	return [][2]string{
		{"fd", fmt.Sprint(dev.Fd())}, {"rootmode", "40000"}, {"user_id", fmt.Sprint(c.UID)}, {"group_id", fmt.Sprint(c.GID)},
		{"max_read", fmt.Sprint(maxRead)}, {"allow_other"}, {"default_permissions"},
	}
}

// mountUpon mounts the cover upon what may be in use, where the kernel knows nothing
// better.
func (c *Cover) mountUpon() error {
	dev, err := c.mount()
	if err != nil {
		return err
	}
	path := filepath.Join(c.Base, "data", c.Name)
	if err = handOver(dev); err == nil {
		_, err = os.Stat(path) // waits for the first answer
	}
	if err != nil {
		return errors.Join(err, unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	return SetReadAhead(path)
}

// mount mounts c over the directory that the base shows now. What the base says
// is followed nowhere else.
func (c *Cover) mount() (*os.File, error) {
	dir, err := c.open("data/"+c.Name, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	return c.mountAt("/proc/self/fd/" + strconv.Itoa(dir))
}

// mountAt mounts a connection of its own at path.
func (c *Cover) mountAt(path string) (*os.File, error) {
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	var data []string
	for _, o := range c.options(dev) {
		data = append(data, strings.TrimSuffix(o[0]+"="+o[1], "="))
	}
	if err := unix.Mount("bivouac", path, FUSEType, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, strings.Join(data, ",")); err != nil {
		_ = dev.Close() // nothing is mounted by it
		return nil, err
	}
	return dev, nil
}

// open opens a directory of the mount of ours at Base: by plain names, and with
// more rules for the way to it.
func (c *Cover) open(path string, rules uint64) (int, error) {
	at, err := At(c.Base)
	if err != nil {
		return -1, err
	}
	if len(at) == 0 || at[len(at)-1].FSType != FUSEType {
		return -1, fmt.Errorf("%s is no mount of ours: %w", c.Base, syscall.EINVAL)
	}
	base, err := unix.Open(c.Base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(base)
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | rules,
	}
	return unix.Openat2(base, path, &how)
}

// SetReadAhead raises the read-ahead of the mount at path. What it is by
// default is only slower.
func SetReadAhead(path string) error {
	at, err := At(path)
	if err != nil || len(at) == 0 {
		return errors.Join(err, fmt.Errorf("%s is not mounted", path))
	}
	return setReadAhead(at[len(at)-1].Dev)
}

// setReadAhead raises it for a device, major:minor.
func setReadAhead(dev string) error {
	f := filepath.Join("/sys/class/bdi", dev, "read_ahead_kb")
	return os.WriteFile(f, []byte(strconv.Itoa(readAhead)), 0)
}

// Under is the mounts at path and below it.
func Under(path string) ([]Entry, error) {
	table, err := Table()
	var under []Entry
	for _, m := range table {
		if m.Path == path || strings.HasPrefix(m.Path, strings.TrimSuffix(path, "/")+"/") {
			under = append(under, m)
		}
	}
	return under, err
}
