package mounts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
)

// OverlayType is the filesystem type of a view.
const OverlayType = "overlay"

// viewTime bounds the making of a view: enough for some millions of names.
const viewTime = 2 * time.Minute

// privateDir is where the helper mounts the layers, in its own mount namespace.
const privateDir = "/sys"

// View is a kernel view of a dataset: a read-only overlayfs over the directory data/Name.
// Its layers are an image of the tree without data, the whole objects of this node, and a FUSE
// connection for all other files; see the package comment.
type View struct {
	Cover
	Stores []string // the user's store directories; absolute paths
}

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

// Mount starts a helper, the command view of program, that makes v from the tree sent to it in the talk.
func (v View) Mount(ctx context.Context, program string) (*Mounting, error) {
	if err := v.validate(); err != nil {
		return nil, err
	}
	m, err := helper{program: program, args: append(v.args("view"), v.Stores...), limit: viewTime}.start(ctx)
	if err != nil {
		return nil, fmt.Errorf("view of %s: %w", v.Name, err)
	}
	return m, nil
}

// Help is the work of the helper: it makes the view and mounts it.
func (v View) Help() error {
	talk := os.NewFile(talkFD, "talk")
	defer talk.Close()
	p, view, root, err := v.make(talk)
	return p.attach(talk, view, root, true, err)
}

// make makes the view, not attached yet, and opens its mountpoint.
func (v *View) make(tree *os.File) (p *point, view int, root metadata.Ino, err error) {
	if err := v.validate(); err != nil {
		return nil, -1, 0, err
	}
	if p, err = v.point(); err != nil {
		return nil, -1, 0, fmt.Errorf("view of %s: %w", v.Name, err)
	}
	if view, root, err = v.assemble(tree); err != nil {
		p.close()
		return nil, -1, 0, err
	}
	return p, view, root, nil
}

// assemble makes the layers in a private mount namespace, where no other process sees them, and the view that holds
// them, and returns to our namespace. If it fails, its remains end with the process.
func (v *View) assemble(tree *os.File) (view int, root metadata.Ino, err error) {
	runtime.LockOSThread() // never unlocked: the thread has its own namespace
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return -1, 0, err
	}
	defer home.Close()
	image, err := v.imageFile()
	if err != nil {
		return -1, 0, fmt.Errorf("image of %s: %w", v.Name, err)
	}
	defer image.Close()
	if err := ownNamespace(); err != nil {
		return -1, 0, fmt.Errorf("a mount namespace: %w", err)
	}
	objects, root, err := v.layers(tree, image)
	if err != nil {
		return -1, 0, err
	}
	if view, err = v.overlay(); err != nil {
		return -1, 0, fmt.Errorf("overlay: %w", err)
	}
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNS); err != nil {
		_ = unix.Close(view) // it is unused
		return -1, 0, fmt.Errorf("back to our mount namespace: %w", err)
	}
	_ = setReadAhead(objects) // failure only slows reads
	return view, root, nil
}

// imageFile creates a file without a name in the user's first store. It follows no link: if the stores are in a
// directory that all users can write, the user can replace a store by a link.
func (v *View) imageFile() (*os.File, error) {
	store, err := BeneathPath(v.Stores[0], "")
	if err != nil {
		return nil, err
	}
	defer store.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(store.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, &os.PathError{Op: "open", Path: v.Stores[0], Err: unix.ENOTDIR}
	}
	return os.OpenFile(Reopen(store), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
}

// ownNamespace gives this thread a mount namespace from which no mount propagates.
func ownNamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	return errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("bivouac", privateDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=755"),
		unix.Mkdir(imageLayer, 0o755), unix.Mkdir(objectsLayer, 0o755))
}

// Mountpoints of the layers.
const (
	imageLayer   = privateDir + "/image"
	objectsLayer = privateDir + "/objects"
)

// layers mounts the connection, which it hands over, and the image of the tree. It returns the device of the
// connection, and the inode of the root of the tree.
func (v *View) layers(tree, image *os.File) (device string, root metadata.Ino, err error) {
	dev, err := v.mountAt(objectsLayer)
	if err != nil {
		return "", 0, fmt.Errorf("FUSE connection for %s: %w", v.Name, err)
	}
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, objectsLayer, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	if err = errors.Join(err, handOver(dev)); err != nil {
		return "", 0, err
	}
	size, root, err := writeImage(image, tree)
	if err == nil {
		err = image.Truncate(size)
	}
	if err != nil {
		return "", 0, fmt.Errorf("image of %s: %w", v.Name, err)
	}
	disk, err := loop(image)
	if err != nil {
		return "", 0, err
	}
	defer disk.Close() // the mount keeps it
	if err := unix.Mount(disk.Name(), imageLayer, "erofs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return "", 0, fmt.Errorf("erofs on %s: %w", disk.Name(), err)
	}
	return fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), root, nil
}

// overlay makes the view, not attached yet, with the user's credentials. Overlayfs keeps them for looking up and
// opening the data of files.
func (v *View) overlay() (fd int, err error) {
	restore, err := dropCredentials(v.UID, v.GID)
	if err != nil {
		return -1, err
	}
	defer func() { err = errors.Join(err, restore()) }()
	layers := []string{imageLayer}
	for _, s := range v.Stores {
		d, err := BeneathPath(s, chunkstore.WholeDir)
		if err != nil {
			return -1, err
		}
		defer d.Close()
		layers = append(layers, Reopen(d))
	}
	return newOverlay(append(layers, objectsLayer))
}

// newOverlay makes an overlayfs of layers; all but the first hold only data. Linux 6.8 takes layers one by one; before,
// all must fit in 255 bytes.
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

// newMount makes a mount that is not attached yet. An option without a value is a flag.
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

// complaint adds the kernel's message about a mount to err.
func complaint(fs int, err error) error {
	b := make([]byte, 512)
	n, rerr := unix.Read(fs, b)
	if rerr != nil || n <= 0 {
		return err
	}
	return fmt.Errorf("%w: %s", err, strings.TrimSpace(strings.TrimPrefix(string(b[:n]), "e ")))
}
