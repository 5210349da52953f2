package mounts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// FUSEType is the filesystem type of our mounts.
const FUSEType = "fuse.bivouac"

// readAhead is the kernel's read-ahead on our mounts, in KiB: several requests of the
// largest size at once, as in package mount.
const readAhead = 4096

// coverTime bounds the making of a cover.
const coverTime = 10 * time.Second

// maxRead bounds one read request, in bytes.
const maxRead = 1 << 20

// coverFD is the helper's descriptor of the socket on which it returns /dev/fuse.
const coverFD = 3

// Cover is a read-only mount over the directory data/Name of the mount at Base, for the user UID. That user serves the
// tree below Base, so its content is untrusted, and only a helper waits for its answers: a process that does nothing
// else and can be killed.
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

// Mount starts a helper, the command cover of program, that mounts c. It runs until the cover is mounted. When ctx ends
// the helper is killed; EBUSY from End means that it did not die.
func (c Cover) Mount(ctx context.Context, program string) (*Mounting, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	m, err := helper{program: program, args: c.args("cover"), limit: coverTime}.start(ctx)
	if err != nil {
		return nil, fmt.Errorf("cover of %s: %w", c.Name, err)
	}
	return m, nil
}

// args returns the command line of a helper. A name may begin with "-".
func (c Cover) args(command string) []string {
	return []string{command, "--", c.Base, c.Name, fmt.Sprint(c.UID), fmt.Sprint(c.GID)}
}

// Help is the work of the helper: it makes c, hands over the descriptor of the connection, raises the read-ahead once
// the daemon answers, and mounts c over the dataset.
func (c Cover) Help() error {
	talk := os.NewFile(talkFD, "talk")
	defer talk.Close()
	p, m, err := c.make()
	root, herr := hearRoot(talk) // arrives when the daemon has the descriptor
	return p.attach(talk, m, root, false, cmp.Or(err, herr))
}

// make makes c, not attached yet, and opens its mountpoint.
func (c *Cover) make() (p *point, m int, err error) {
	if err := c.validate(); err != nil {
		return nil, -1, err
	}
	if p, err = c.point(); err != nil {
		return nil, -1, fmt.Errorf("cover of %s: %w", c.Name, err)
	}
	m, dev, err := c.connection()
	if err == nil {
		if err = answers(m, dev); err != nil {
			_ = unix.Close(m) // it is unused
		}
	}
	if err != nil {
		p.close()
		return nil, -1, fmt.Errorf("cover of %s: %w", c.Name, err)
	}
	return p, m, nil
}

// answers hands over the descriptor of a connection, waits for the first answer, and raises the read-ahead.
func answers(m int, dev *os.File) error {
	err := handOver(dev)
	var st unix.Statx_t
	if err == nil {
		err = unix.Statx(m, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st)
	}
	if err == nil {
		_ = setReadAhead(fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor)) // failure only slows reads
	}
	return err
}

// handOver sends the descriptor of a connection to the daemon, which serves it.
func handOver(dev *os.File) error {
	err := unix.Sendmsg(coverFD, []byte{0}, unix.UnixRights(int(dev.Fd())), nil, unix.MSG_NOSIGNAL)
	_ = dev.Close() // the daemon has its own
	return err
}

// connection makes a FUSE mount that is not attached yet.
func (c *Cover) connection() (m int, dev *os.File, err error) {
	dev, err = os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return -1, nil, err
	}
	m, err = newMount("fuse", append(c.options(dev), [2]string{"source", "bivouac"}, [2]string{"subtype", "bivouac"}, [2]string{"ro"}))
	if err != nil {
		_ = dev.Close() // nothing uses it
	}
	return m, dev, err
}

// options returns the mount options of a connection; an option without a value is a flag.
func (c *Cover) options(dev *os.File) [][2]string {
	return [][2]string{
		{"fd", fmt.Sprint(dev.Fd())}, {"rootmode", "40000"}, {"user_id", fmt.Sprint(c.UID)}, {"group_id", fmt.Sprint(c.GID)},
		{"max_read", fmt.Sprint(maxRead)}, {"allow_other"}, {"default_permissions"},
	}
}

// mountAt mounts a connection at path.
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
		_ = dev.Close() // nothing uses it
		return nil, err
	}
	return dev, nil
}

// open opens a directory of the mount at Base, which must be ours. It follows no links; rules adds further resolve
// flags.
func (c *Cover) open(path string, rules uint64) (int, error) {
	at, err := At(c.Base)
	if err != nil {
		return -1, err
	}
	if len(at) == 0 || at[len(at)-1].FSType != FUSEType {
		return -1, fmt.Errorf("%s is not a bivouac mount: %w", c.Base, syscall.EINVAL)
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

// SetReadAhead raises the kernel's read-ahead of the mount at path.
func SetReadAhead(path string) error {
	at, err := At(path)
	if err != nil || len(at) == 0 {
		return errors.Join(err, fmt.Errorf("%s is not mounted", path))
	}
	return setReadAhead(at[len(at)-1].Dev)
}

// setReadAhead raises the read-ahead of a device, major:minor.
func setReadAhead(dev string) error {
	f := filepath.Join("/sys/class/bdi", dev, "read_ahead_kb")
	return os.WriteFile(f, []byte(strconv.Itoa(readAhead)), 0)
}

// Under returns the mounts at path and below it.
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
