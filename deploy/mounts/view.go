package mounts

import (
	"context"
	"errors"
	"fmt"
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

// privateDir is hidden in the helper's own mount namespace by what it mounts.
const privateDir = "/sys"

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

// Mount has a helper, which is program's command view, make v of the tree that
// comes in talk, which stays the caller's. It returns the descriptor of /dev/fuse
// that has to be served then, and end, which waits for the helper.
func (v View) Mount(ctx context.Context, program string, talk *os.File) (dev *os.File, end func() error, err error) {
	if err := v.validate(); err != nil {
		return nil, nil, err
	}
	h := helper{program: program, args: append(v.args("view"), v.Stores...), talk: talk, limit: viewTime}
	if dev, end, err = h.start(ctx); err != nil {
		return nil, nil, fmt.Errorf("view of %s: %w", v.Name, err)
	}
	return dev, end, nil
}

// Help is the helper's work: it makes the view, and then shows it.
func (v View) Help() error {
	talk := os.NewFile(talkFD, "talk")
	defer talk.Close()
	s, err := v.make(talk)
	if err == nil {
		defer s.close()
	}
	_, err = show(talk, s, err)
	return err
}

// make makes the view, behind a screen.
func (v *View) make(tree *os.File) (*screen, error) {
	if err := v.validate(); err != nil {
		return nil, err
	}
	s, err := v.screen()
	if err != nil {
		return nil, fmt.Errorf("view of %s: %w", v.Name, err)
	}
	if err := v.makeIn(s, tree); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// makeIn makes the layers in a mount namespace of its own, where nobody else
// sees them, and puts the view that keeps them in ours. What is left undone goes
// with the process.
func (v *View) makeIn(s *screen, tree *os.File) error {
	runtime.LockOSThread() // for ever: the thread has left the others
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	defer home.Close()
	image, err := v.imageFile()
	if err != nil {
		return fmt.Errorf("image of %s: %w", v.Name, err)
	}
	defer image.Close()
	if err := ownNamespace(); err != nil {
		return fmt.Errorf("a mount namespace: %w", err)
	}
	objects, deep, err := v.layers(tree, image)
	if err != nil {
		return err
	}
	s.dirs.deep = deep
	view, err := v.overlay()
	if err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	defer unix.Close(view)
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("back to our mount namespace: %w", err)
	}
	if err := s.hide(view); err != nil {
		return fmt.Errorf("view of %s: %w", v.Name, err)
	}
	_ = setReadAhead(objects) // it is only slower
	return nil
}

// imageFile is a file without a name in the user's first store. Where a site has stores
// in a directory that everybody can write to, he can put a link in the place of his.
func (v *View) imageFile() (*os.File, error) {
	return os.OpenFile(v.Stores[0], unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
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
// returns the connection's device, and whether the tree is deep.
func (v *View) layers(tree, image *os.File) (device string, deep bool, err error) {
	dev, err := v.mountAt(objectsLayer)
	if err != nil {
		return "", false, fmt.Errorf("a connection for %s: %w", v.Name, err)
	}
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, objectsLayer, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	if err = errors.Join(err, handOver(dev)); err != nil {
		return "", false, err
	}
	size, deep, err := writeImage(image, tree)
	if err == nil {
		err = image.Truncate(size)
	}
	if err != nil {
		return "", false, fmt.Errorf("image of %s: %w", v.Name, err)
	}
	disk, err := loop(image)
	if err != nil {
		return "", false, err
	}
	defer disk.Close() // the mount keeps it
	if err := unix.Mount(disk.Name(), imageLayer, "erofs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return "", false, fmt.Errorf("erofs on %s: %w", disk.Name(), err)
	}
	return fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), deep, nil
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
	return newOverlay(append(layers, objectsLayer))
}

// newOverlay makes a view of layers, the second and later of which have only data. It
// names them one by one, as many as there are; before Linux 6.8 all of them have to fit
// in 255 bytes.
func newOverlay(layers []string) (int, error) {
	options := [][2]string{{"source", "bivouac"}, {"metacopy", "on"}, {"redirect_dir", "follow"}, {"index", "off"}, {"xino", "on"}, {"ro", ""}}
	single := append(options, [2]string{"lowerdir+", layers[0]})
	for _, l := range layers[1:] {
		single = append(single, [2]string{"datadir+", l})
	}
	fd, err := newMount(OverlayType, single)
	if errors.Is(err, unix.EINVAL) {
		return newMount(OverlayType, append(options, [2]string{"lowerdir", strings.Join(layers, "::")}))
	}
	return fd, err
}

// newMount makes a mount that is nowhere yet. An option without a value is a flag.
func newMount(kind string, options [][2]string) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for _, o := range options {
		if o[1] == "" {
			err = unix.FsconfigSetFlag(fs, o[0])
		} else {
			err = unix.FsconfigSetString(fs, o[0], o[1])
		}
		if err != nil {
			return -1, complaint(fs, fmt.Errorf("%s=%s: %w", o[0], o[1], err))
		}
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
