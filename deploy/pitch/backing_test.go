package pitch

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
)

// newBacker starts a backer on a connection that is not mounted, so that the
// kernel refuses all that the backer lets through. It returns the daemon's end
// of its socket.
func newBacker(t *testing.T, uid uint32) (far *os.File, ended chan struct{}) {
	t.Helper()
	fuse, err := os.OpenFile(fuseDevice, os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	defer fuse.Close()
	ended = make(chan struct{})
	far, stop, err := startBacker(&connection{dev: fuse, files: make(map[int32]struct{})}, uid, fakeMounter{}, func() { close(ended) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return far, ended
}

func newBacking(t *testing.T, uid uint32) *daemon.Backing {
	t.Helper()
	far, ended := newBacker(t, uid)
	b, err := daemon.NewBacking(far)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.Close()
		<-ended
	})
	return b
}

func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if errnoOf(err) != want || err == nil {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

// TestBackerRefuses: only plain files of the user that are open for reading
// and no more reach the kernel.
func TestBackerRefuses(t *testing.T) {
	uid := uint32(os.Geteuid())
	b := newBacking(t, uid)
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what, path string
		flags      int
	}{
		{"a file open for writing", path, os.O_RDWR},
		{"a file open for writing only", path, os.O_WRONLY},
		{"a path", path, unix.O_PATH},
		{"a directory", filepath.Dir(path), os.O_RDONLY},
		{"a device", os.DevNull, os.O_RDONLY},
	} {
		f, err := os.OpenFile(tt.path, tt.flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Back(f)
		wantErrno(t, tt.what, err, syscall.EPERM)
		_ = f.Close()
	}
	wantErrno(t, "an id that was not given", b.Drop(7), syscall.ENOENT)
	other := newBacking(t, uid+1)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = other.Back(f)
	wantErrno(t, "a file of another user", err, syscall.EPERM)
	if _, err := b.Back(f); err == nil {
		t.Error("a connection that is not mounted took a file")
	}
}

// TestBackerPackets: what is no request is answered EPROTO, and what came with
// it is closed; the end of the socket is the end of the backer.
func TestBackerPackets(t *testing.T) {
	far, ended := newBacker(t, uint32(os.Geteuid()))
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	one, two := unix.UnixRights(int(f.Fd())), unix.UnixRights(int(f.Fd()), int(f.Fd()))
	for _, tt := range []struct {
		what   string
		p, oob []byte
	}{
		{"no descriptor", []byte{daemon.BackingOpen}, nil},
		{"two descriptors", []byte{daemon.BackingOpen}, two},
		{"a descriptor to drop", []byte{daemon.BackingDrop, 1, 0, 0, 0}, one},
		{"a short drop", []byte{daemon.BackingDrop, 1}, nil},
		{"a long one", make([]byte, 100), nil},
		{"an unknown one", []byte{'?'}, nil},
	} {
		if err := unix.Sendmsg(int(far.Fd()), tt.p, tt.oob, nil, 0); err != nil {
			t.Fatal(err)
		}
		a := make([]byte, 64)
		n, err := unix.Read(int(far.Fd()), a)
		if err != nil || n != daemon.BackingReply || syscall.Errno(a[0]) != syscall.EPROTO {
			t.Errorf("%s is answered %v, %v, want EPROTO", tt.what, a[:max(n, 0)], err)
		}
	}
	_ = far.Close()
	<-ended
}

// fakeMounter has a descriptor for one name only; that of a view is the talk's.
type fakeMounter struct{}

func (fakeMounter) cover(name string, _ *os.File) (*os.File, error) {
	if name != "set" {
		return nil, syscall.EINVAL
	}
	return os.Open(os.DevNull)
}

func (fakeMounter) view(name string, talk *os.File) (*os.File, error) {
	if name != "set" {
		return nil, syscall.EINVAL
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", talk.Fd()))
}

// TestBackerViews: the keeper gets the socket that the daemon sends, and the daemon
// the descriptor that was mounted.
func TestBackerViews(t *testing.T) {
	b := newBacking(t, uint32(os.Geteuid()))
	talk := newTalk(t)
	for _, name := range []string{"other", "", string(make([]byte, 256))} {
		_, err := b.View(name, talk)
		wantErrno(t, fmt.Sprintf("a view of %.10q", name), err, syscall.EINVAL)
	}
	dev, err := b.View("set", talk)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if got, err := io.ReadAll(dev); err != nil || string(got) != "a talk" {
		t.Errorf("the keeper had %q, %v", got, err)
	}
	for range maxCovers - 2 {
		dev, err := b.Cover("set", talk)
		if err != nil {
			t.Fatal(err)
		}
		_ = dev.Close()
	}
	_, err = b.View("set", talk)
	wantErrno(t, "one more mount than may be", err, syscall.ENOSPC)
}

// TestBackerCovers: the descriptor of a cover comes to the daemon, up to a bound;
// what does not parse is refused and mounts nothing.
func TestBackerCovers(t *testing.T) {
	b := newBacking(t, uint32(os.Geteuid()))
	talk := newTalk(t)
	_, err := b.Cover("other", talk)
	wantErrno(t, "a cover that cannot be mounted", err, syscall.EINVAL)
	_, err = b.Cover("", talk)
	wantErrno(t, "a cover without a name", err, syscall.EINVAL)
	_, err = b.Cover(string(make([]byte, 256)), talk)
	wantErrno(t, "a cover with too long a name", err, syscall.EINVAL)
	for range maxCovers - 1 {
		dev, err := b.Cover("set", talk)
		if err != nil {
			t.Fatal(err)
		}
		st, err := dev.Stat()
		if err != nil || st.Mode()&os.ModeDevice == 0 {
			t.Errorf("the descriptor is %v, %v", st, err)
		}
		_ = dev.Close()
	}
	_, err = b.Cover("set", talk)
	wantErrno(t, "one more cover than may be", err, syscall.ENOSPC)
}

// newTalk is a file in the place of a socket.
func newTalk(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "talk")
	if err == nil {
		t.Cleanup(func() { _ = f.Close() })
		_, err = f.WriteString("a talk")
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}
