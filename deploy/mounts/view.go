package mounts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// OverlayType is the type of a view.
const OverlayType = "overlay"

// viewTime bounds the making of a view: some millions of names.
const viewTime = 2 * time.Minute

// treeFD is where the helper of a view has the socket on which the tree comes, and
// on which it says how it went.
const treeFD = coverFD + 1

// privateDir is hidden in the helper's own mount namespace by what it mounts.
const privateDir = "/sys"

// viewMade is what a helper says when the view is there.
const viewMade = "ok"

// View is a kernel view of a dataset: a read-only overlayfs that is to lie over the
// directory data/Name, upon the cover if it has one. Its layers are an image of
// the tree without data, the objects of this node, and a FUSE connection of its
// own for all other files; see the package comment.
type View struct {
	Cover
	Stores []string // the user's store directories, with absolute paths
}

// objectsDir is where a store directory has its objects.
const objectsDir = "objects"

func (v *View) validate() error {
	err := v.Cover.validate()
	for _, s := range v.Stores {
		if !filepath.IsAbs(s) {
			err = errors.Join(err, fmt.Errorf("store %q: %w", s, unix.EINVAL))
		}
	}
	if len(v.Stores) == 0 {
		err = errors.Join(err, fmt.Errorf("no store: %w", unix.EINVAL))
	}
	return err
}

// TreeSocket is two ends of a socket for the tree of a view: far is for the helper.
func TreeSocket() (near *net.UnixConn, far *os.File, err error) {
	return socketpair(unix.SOCK_STREAM, "tree")
}

// Mount has a helper, which is program's command view, make v of the tree that
// comes on a socket, tree, which stays the caller's. It returns the descriptor of
// /dev/fuse that has to be served then, and end, which waits for the helper. That
// says on the socket how it went: see AwaitView.
func (v View) Mount(ctx context.Context, program string, tree *os.File) (dev *os.File, end func(), err error) {
	if err := v.validate(); err != nil {
		return nil, nil, err
	}
	h := helper{program: program, args: append(v.args("view"), v.Stores...), files: []*os.File{tree}, limit: viewTime}
	if dev, end, err = h.start(ctx); err != nil {
		return nil, nil, fmt.Errorf("view of %s: %w", v.Name, err)
	}
	return dev, end, nil
}

// Help is the helper's work. It says on the socket of the tree how it went.
func (v View) Help() error {
	tree := os.NewFile(treeFD, "tree")
	defer tree.Close()
	if err := v.validate(); err != nil {
		return err
	}
	said := viewMade
	err := v.make(tree)
	if err != nil {
		said = err.Error()
	}
	_, serr := tree.WriteString(said + "\n") // who made the tree may be gone
	return errors.Join(err, serr)
}

// AwaitView waits, on the other end of the socket, for what the helper says: nil is
// that the view is there.
func AwaitView(from io.Reader) error {
	said, err := bufio.NewReader(io.LimitReader(from, 4096)).ReadString('\n')
	switch said = strings.TrimSpace(said); {
	case said == viewMade:
		return nil
	case said != "":
		return fmt.Errorf("%s: %w", said, unix.EIO)
	}
	return fmt.Errorf("who makes the view has gone: %w", err)
}

// make makes the layers in a mount namespace of its own, where nobody else sees
// them, and puts the view that keeps them in ours. What is left undone goes with
// the process.
func (v *View) make(tree *os.File) error {
	at, err := v.open(0) // the cover is a mount
	if err != nil {
		return fmt.Errorf("view of %s: %w", v.Name, err)
	}
	defer unix.Close(at)
	runtime.LockOSThread() // for ever: the thread has left the others
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	defer home.Close()
	image, err := os.OpenFile(v.Stores[0], unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("image of %s: %w", v.Name, err)
	}
	defer image.Close()
	if err := ownNamespace(); err != nil {
		return fmt.Errorf("a mount namespace: %w", err)
	}
	objects, err := v.layers(tree, image)
	if err != nil {
		return err
	}
	view, err := v.overlay()
	if err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	defer unix.Close(view)
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("back to our mount namespace: %w", err)
	}
	if err := unix.MoveMount(view, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("view of %s: %w", v.Name, err)
	}
	_ = setReadAhead(objects) // it is only slower
	return nil
}

// ownNamespace gives this thread a mount namespace from which nothing gets out.
func ownNamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	return errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("bivouac", privateDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=755"),
		unix.Mkdir(imageLayer, 0o755), unix.Mkdir(objectsLayer, 0o755))
}

// Where the layers are mounted that nobody else sees.
const (
	imageLayer   = privateDir + "/image"
	objectsLayer = privateDir + "/objects"
)

// layers mounts the connection, which it hands over, and the image of the tree. It
// returns the connection's device.
func (v *View) layers(tree, image *os.File) (device string, err error) {
	dev, err := v.mountAt(objectsLayer)
	if err != nil {
		return "", fmt.Errorf("a connection for %s: %w", v.Name, err)
	}
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, objectsLayer, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	if err == nil {
		err = unix.Sendmsg(coverFD, []byte{0}, unix.UnixRights(int(dev.Fd())), nil, unix.MSG_NOSIGNAL)
	}
	_ = dev.Close() // who has it now serves it
	if err != nil {
		return "", err
	}
	size, err := writeImage(image, tree)
	if err == nil {
		err = image.Truncate(size)
	}
	if err != nil {
		return "", fmt.Errorf("image of %s: %w", v.Name, err)
	}
	disk, err := loop(image)
	if err != nil {
		return "", err
	}
	defer disk.Close() // the mount keeps it
	if err := unix.Mount(disk.Name(), imageLayer, "erofs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return "", fmt.Errorf("erofs on %s: %w", disk.Name(), err)
	}
	return fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), nil
}

// overlay makes the view, which is nowhere yet, with the rights of the user: by
// those overlayfs looks for the data of files, and opens it.
func (v *View) overlay() (fd int, err error) {
	restore, err := become(v.UID, v.GID)
	if err != nil {
		return -1, err
	}
	defer func() { err = errors.Join(err, restore()) }()
	layers := []string{imageLayer}
	for _, s := range v.Stores {
		d, err := os.OpenFile(filepath.Join(s, objectsDir), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		defer d.Close()
		layers = append(layers, "/proc/self/fd/"+strconv.Itoa(int(d.Fd())))
	}
	return mountOverlay(strings.Join(append(layers, objectsLayer), "::"))
}

// mountOverlay makes a view of layers, the second and later of which have only
// data.
func mountOverlay(layers string) (int, error) {
	fs, err := unix.Fsopen(OverlayType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for _, o := range [][2]string{{"source", "bivouac"}, {"metacopy", "on"}, {"redirect_dir", "follow"}, {"index", "off"}, {"xino", "on"}, {"lowerdir", layers}} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return -1, complaint(fs, fmt.Errorf("%s=%s: %w", o[0], o[1], err))
		}
	}
	if err := unix.FsconfigSetFlag(fs, "ro"); err != nil {
		return -1, complaint(fs, err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, complaint(fs, err)
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// complaint adds what the kernel has to say of a mount to err.
func complaint(fs int, err error) error {
	b := make([]byte, 512)
	n, rerr := unix.Read(fs, b)
	if rerr != nil || n <= 0 {
		return err
	}
	return fmt.Errorf("%w: %s", err, strings.TrimSpace(strings.TrimPrefix(string(b[:n]), "e ")))
}
