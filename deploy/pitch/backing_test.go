package pitch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
)

// newBacker starts a backer on a connection that is not mounted. It returns the daemon's end of its socket.
func newBacker(t *testing.T) (far *os.File, ended chan struct{}) {
	t.Helper()
	dev, err := os.OpenFile(fuseDevice, os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	defer dev.Close()
	return backerOf(t, dev, &backer{by: fakeMounter{}})
}

func backerOf(t *testing.T, dev *os.File, b *backer) (far *os.File, ended chan struct{}) {
	t.Helper()
	return backerOn(t, &connection{dev: dev, files: make(map[int32]struct{})}, b)
}

func backerOn(t *testing.T, conn *connection, b *backer) (far *os.File, ended chan struct{}) {
	t.Helper()
	ended = make(chan struct{})
	far, stop, err := startBacker(conn, b, func() { close(ended) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return far, ended
}

func newBacking(t *testing.T) *daemon.Backing {
	t.Helper()
	far, ended := newBacker(t)
	b, err := daemon.NewBacking(far, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.Close()
		<-ended
	})
	return b
}

// passing mounts a connection that lets a backer register passthrough files, and ends it after the test.
func passing(t *testing.T) *os.File {
	t.Helper()
	dev := hanging(t, t.TempDir())
	b := make([]byte, 1<<17)
	n, err := unix.Read(int(dev.Fd()), b)
	if err != nil || n < 40+16 || binary.NativeEndian.Uint32(b[4:]) != 26 {
		t.Fatalf("no INIT: %d bytes, %v", n, err)
	}
	if minor := binary.NativeEndian.Uint32(b[44:]); minor < 40 {
		t.Skipf("FUSE 7.%d has no passthrough", minor)
	}
	out := make([]byte, 16+64)
	copy(out[8:16], b[8:16])
	for off, v := range map[int]uint32{0: 80, 16: 7, 20: 40, 28: 1 << 30, 36: 1 << 16, 48: 1 << (37 - 32), 52: 1} { // FUSE_INIT_EXT, FUSE_PASSTHROUGH, a stack of 1
		binary.NativeEndian.PutUint32(out[off:], v)
	}
	if _, err := unix.Write(int(dev.Fd()), out); err != nil {
		t.Fatal(err)
	}
	return dev
}

// hanging mounts a FUSE filesystem of root that does not answer for a minute; after that, its requests fail.
func hanging(t *testing.T, at string) *os.File {
	t.Helper()
	uid := uint32(os.Geteuid())
	dev, err := mountFuse(at, uid, uid)
	if err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(time.Minute, func() { _ = unix.Unmount(at, unix.MNT_FORCE|unix.MNT_DETACH) })
	t.Cleanup(func() {
		if hung.Stop() {
			_ = unix.Unmount(at, unix.MNT_FORCE|unix.MNT_DETACH) // the next line ends it, too
		}
		_ = dev.Close() // nothing was written
	})
	return dev
}

// request sends a packet to a backer, and returns its reply.
func request(t *testing.T, far *os.File, p []byte, rights ...int) (no syscall.Errno, id int32) {
	t.Helper()
	send(t, far, p, rights...)
	return receive(t, far)
}

func send(t *testing.T, far *os.File, p []byte, rights ...int) {
	t.Helper()
	var oob []byte
	if len(rights) > 0 {
		oob = unix.UnixRights(rights...)
	}
	if err := unix.Sendmsg(int(far.Fd()), p, oob, nil, 0); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, far *os.File) (no syscall.Errno, id int32) {
	t.Helper()
	a := make([]byte, 64)
	n, err := unix.Read(int(far.Fd()), a)
	if err != nil || n != daemon.BackingReply {
		t.Fatalf("the answer is %v, %v", a[:max(n, 0)], err)
	}
	return syscall.Errno(binary.LittleEndian.Uint32(a)), int32(binary.LittleEndian.Uint32(a[4:]))
}

func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if errnoOf(err) != want || err == nil {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

// TestBackerRefuses: only plain files of the user that are in a store, and only the files named by the daemon, are
// passed to the kernel. The backer does not access a hanging FUSE filesystem there, and does not wait for leases.
func TestBackerRefuses(t *testing.T) {
	needFuse(t)
	dir, uid := t.TempDir(), uint32(os.Geteuid())
	at := func(name string) string { return filepath.Join(dir, "store", name) }
	for _, err := range []error{
		os.MkdirAll(at("d"), 0o700), os.Mkdir(at("hung"), 0o700), os.WriteFile(at("d/f"), []byte("x"), 0o600), os.WriteFile(at("d/g"), []byte("x"), 0o600),
		os.WriteFile(filepath.Join(dir, "outside"), []byte("x"), 0o600), os.WriteFile(at("another's"), nil, 0o600), os.Chown(at("another's"), 12345, 12345),
		os.Symlink("..", at("link")), os.Symlink("f", at("d/link")), os.Symlink("d", at("to d")),
		unix.Mkfifo(at("fifo"), 0o600), unix.Mknod(at("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	hanging(t, at("hung"))
	leased, err := os.Create(at("leased"))
	if err == nil {
		defer leased.Close()
		_, err = unix.FcntlInt(leased.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	}
	store, e := openStore(at(""), uid)
	if err = errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	far, _ := backerOf(t, passing(t), &backer{uid: uid, stores: []*os.File{nil, store}})
	inode := func(path string) uint64 {
		var st unix.Stat_t
		_ = unix.Lstat(path, &st) // 0 if it does not exist
		return st.Ino
	}
	ask := func(store byte, path string, ino uint64) (syscall.Errno, int32) {
		t.Helper()
		return request(t, far, append(binary.LittleEndian.AppendUint64([]byte{daemon.BackingOpen, store}, ino), path...))
	}
	for _, tt := range []struct {
		path, is string
		want     syscall.Errno
	}{
		{"d", "d", syscall.EPERM}, {"another's", "another's", syscall.EPERM}, {"fifo", "fifo", syscall.EPERM}, {"device", "device", syscall.EPERM},
		{"d/link", "d/f", syscall.EPERM}, {"link/outside", "../outside", syscall.ELOOP}, {"to d/f", "d/f", syscall.ELOOP}, {"../outside", "../outside", syscall.EXDEV},
		{at("d/f"), "d/f", syscall.EXDEV}, {"hung", "none", syscall.EXDEV}, {"hung/f", "none", syscall.EXDEV}, {"leased", "leased", syscall.EAGAIN},
		{"missing", "none", syscall.ENOENT}, {"d/f", "d/g", syscall.ESTALE}, {"d/f", "d/f", 0},
	} {
		no, id := ask(1, tt.path, inode(at(tt.is)))
		if no != tt.want || (id != 0) != (no == 0) {
			t.Errorf("%q for %q: %v, id %d, want %v", tt.path, tt.is, no, id, tt.want)
		}
		for _, want := range []syscall.Errno{no, syscall.ENOENT} { // an id can be dropped only once
			if no, _ := request(t, far, binary.LittleEndian.AppendUint32([]byte{daemon.BackingDrop}, uint32(id))); id != 0 && no != want {
				t.Errorf("id %d is forgotten: %v, want %v", id, no, want)
			}
		}
	}
	for store, want := range map[byte]syscall.Errno{0: syscall.ESTALE, 2: syscall.EPERM} { // 0 could not be opened, 2 does not exist
		if no, _ := ask(store, "d/f", inode(at("d/f"))); no != want {
			t.Errorf("a file in store %d: %v, want %v", store, no, want)
		}
	}
}

// TestTwoBackers: a dead daemon's backer that hung, and the next daemon's, register files of the same connection.
func TestTwoBackers(t *testing.T) {
	needFuse(t)
	dir, uid := t.TempDir(), uint32(os.Geteuid())
	var st unix.Stat_t
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "f"), nil, 0o600), unix.Stat(filepath.Join(dir, "f"), &st)); err != nil {
		t.Fatal(err)
	}
	conn := &connection{dev: passing(t), files: make(map[int32]struct{})}
	var fars [2]*os.File
	for i := range fars {
		store, err := openStore(dir, uid)
		if err != nil {
			t.Fatal(err)
		}
		fars[i], _ = backerOn(t, conn, &backer{uid: uid, stores: []*os.File{store}})
	}
	register := append(binary.LittleEndian.AppendUint64([]byte{daemon.BackingOpen, 0}, st.Ino), 'f')
	asks := [2][]byte{register, register}
	for n := range 100 {
		for i, far := range fars {
			send(t, far, asks[i])
		}
		for i, far := range fars {
			no, id := receive(t, far)
			if no != 0 {
				t.Fatalf("request %d: %v", n, no)
			}
			if asks[i] = register; n%2 == 0 {
				asks[i] = binary.LittleEndian.AppendUint32([]byte{daemon.BackingDrop}, uint32(id))
			}
		}
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	if len(conn.files) != 0 {
		t.Errorf("%d files are left", len(conn.files))
	}
}

// TestOpenStore: only a directory of the user is accepted as a store; a mount in its place is not accessed.
func TestOpenStore(t *testing.T) {
	needFuse(t)
	dir := t.TempDir()
	for _, name := range []string{"link", "hung", "file"} {
		at, want := filepath.Join(dir, name), error(syscall.EPERM)
		switch name {
		case "link":
			_ = os.Symlink("/tmp", at)
		case "hung":
			_ = os.Mkdir(at, 0o700)
			hanging(t, at)
			want = syscall.EXDEV
		case "file":
			_ = os.WriteFile(at, nil, 0o600)
		}
		if h, err := openStore(at, 0); !errors.Is(err, want) {
			t.Errorf("openStore of a %s = %v, %v, want %v", name, h, err, want)
		}
	}
	if h, err := openStore(t.TempDir(), 1); !errors.Is(err, syscall.EPERM) {
		t.Errorf("openStore of another user's = %v, %v, want EPERM", h, err)
	}
}

// TestBackerPackets: a packet that is no request is answered with EPROTO. Descriptors sent along are not used, not even
// to find out what they are; the backer ends with the socket.
func TestBackerPackets(t *testing.T) {
	needFuse(t)
	far, ended := newBacker(t)
	dir := t.TempDir()
	hanging(t, dir)
	hung, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(hung)
	for _, tt := range []struct {
		what   string
		p      []byte
		rights []int
	}{
		{"nothing but a descriptor", []byte{daemon.BackingOpen}, []int{hung}},
		{"a file and a descriptor", []byte("B\x00inode678path"), []int{hung}},
		{"no path", []byte("B\x00inode678"), nil},
		{"a descriptor to drop", []byte{daemon.BackingDrop, 1, 0, 0, 0}, []int{hung}},
		{"a cover with a descriptor", []byte("Cset"), []int{hung, hung}},
		{"a view with a descriptor", []byte("Vset"), []int{hung}},
		{"a short drop", []byte{daemon.BackingDrop, 1}, nil},
		{"a long one", make([]byte, 100), nil},
		{"too long a one", append([]byte{daemon.BackingCover}, make([]byte, daemon.BackingAsk)...), nil},
		{"an unknown one", []byte{'?'}, nil},
	} {
		if no, _ := request(t, far, tt.p, tt.rights...); no != syscall.EPROTO {
			t.Errorf("%s is answered %v, want EPROTO", tt.what, no)
		}
	}
	_ = far.Close()
	<-ended
}

// fakeMounter has descriptors for one name only. The control connection of a cover is the null device, that of a view
// is the file itself.
type fakeMounter struct{}

func (fakeMounter) cover(name string) ([]*os.File, error) { return opened(name, os.DevNull) }
func (fakeMounter) view(name string) ([]*os.File, error)  { return opened(name, "/proc/self/comm") }

func opened(name, talk string) (files []*os.File, err error) {
	if name != "set" {
		return nil, syscall.EINVAL
	}
	for _, path := range []string{os.DevNull, talk} {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// TestBackerMounts: the daemon gets the descriptors of a mount, up to a maximum number of mounts; a request that does
// not parse is refused and mounts nothing.
func TestBackerMounts(t *testing.T) {
	b := newBacking(t)
	for _, name := range []string{"other", "", string(make([]byte, 256))} {
		_, _, err := b.View(name)
		wantErrno(t, fmt.Sprintf("a view of %.10q", name), err, syscall.EINVAL)
		_, _, err = b.Cover(name)
		wantErrno(t, fmt.Sprintf("a cover of %.10q", name), err, syscall.EINVAL)
	}
	want, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxCovers - 2 { // two requests were sent before
		by := b.Cover
		if i == 0 {
			by = b.View
		}
		dev, talk, err := by("set")
		if err != nil {
			t.Fatal(err)
		}
		if st, err := dev.Stat(); err != nil || st.Mode()&os.ModeDevice == 0 {
			t.Errorf("the descriptor is %v, %v", st, err)
		}
		if got, err := io.ReadAll(talk); i == 0 && (err != nil || !bytes.Equal(got, want)) {
			t.Errorf("the talk of a view has %q, %v, want %q", got, err, want)
		}
		closeFiles([]*os.File{dev, talk})
	}
	_, _, err = b.Cover("set")
	wantErrno(t, "one more mount than may be", err, syscall.ENOSPC)
}

// TestBackingPath: the daemon names a file by its store and the path below that.
func TestBackingPath(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	dir := t.TempDir()
	b, err := daemon.NewBacking(os.NewFile(uintptr(fds[1]), "backing"), []string{dir + "/a", dir + "/b/"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, path := range []string{"a/x", "b/d/y", "c", "b", "bc"} {
		_ = os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700)
		f, err := os.Create(filepath.Join(dir, path))
		if path == "b" {
			f, err = os.Open(filepath.Join(dir, path)) // a directory
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Sendto(fds[0], []byte{0, 0, 0, 0, 9, 0, 0, 0}, 0, nil); err != nil { // for the next request
			t.Fatal(err)
		}
		id, err := b.Back(f)
		got := make([]byte, 300)
		n, _, rerr := unix.Recvfrom(fds[0], got, unix.MSG_DONTWAIT)
		store, rest, ok := strings.Cut(path, "/")
		if !ok {
			if !errors.Is(err, syscall.EINVAL) || rerr == nil {
				t.Errorf("Back of %s, which is in no store: %v, and %d bytes were sent", path, err, n)
			}
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(f.Name(), &st); err != nil {
			t.Fatal(err)
		}
		want := append(binary.LittleEndian.AppendUint64([]byte{daemon.BackingOpen, store[0] - 'a'}, st.Ino), rest...)
		if id != 9 || err != nil || !bytes.Equal(got[:max(n, 0)], want) {
			t.Errorf("Back of %s = %d, %v, and sent %q, %v, want %q", path, id, err, got[:max(n, 0)], rerr, want)
		}
	}
}
