package posix

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rootXattrs: only root can set some xattrs; those that need kernel support are refused.
func rootXattrs(t *testing.T, _ *camp, here, there string) {
	check(t, os.WriteFile(here+"/f", nil, 0o755))
	check(t, os.Symlink("f", here+"/l"))
	b := make([]byte, 1000)
	for _, name := range []string{"trusted.a", "security.NTACL"} {
		for _, file := range []string{"/f", "/l", ""} {
			check(t, unix.Lsetxattr(here+file, name, []byte("one"), unix.XATTR_CREATE))
			if n, err := unix.Lgetxattr(there+file, name, b); err != nil || string(b[:n]) != "one" {
				t.Errorf("%s of %s = %q, %v", name, file, b[:max(n, 0)], err)
			}
			n, err := unix.Llistxattr(there+file, b)
			if err != nil || !slices.Contains(strings.Split(string(b[:n]), "\x00"), name) {
				t.Errorf("list of %s = %q, %v", file, b[:max(n, 0)], err)
			}
			check(t, unix.Lremovexattr(there+file, name))
		}
	}
	capability := []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	wantErr(t, "a capability", unix.Setxattr(here+"/f", "security.capability", capability, 0), syscall.EOPNOTSUPP)
	wantErr(t, "a label", unix.Setxattr(here+"/f", "security.selinux", []byte("x"), 0), syscall.EOPNOTSUPP)
}

// acls: setting and getting are refused.
func acls(t *testing.T, _ *camp, here, _ string) {
	acl := []byte("\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x04\x00\x04\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff")
	for _, name := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
		wantErr(t, "set of "+name, unix.Setxattr(here, name, acl, 0), syscall.EOPNOTSUPP)
		_, err := unix.Getxattr(here, name, make([]byte, 100))
		wantErr(t, "get of "+name, err, syscall.EOPNOTSUPP)
	}
}

// ioctl makes a request on a path.
func ioctl(t *testing.T, path string, request uint, arg []byte) error {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	check(t, err)
	defer func() { check(t, unix.Close(fd)) }()
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&arg[0]))); e != 0 {
		return e
	}
	return nil
}

// inodeFlags: flags set there by chattr and xfs_io are shown here by lsattr and xfs_io.
func inodeFlags(t *testing.T, _ *camp, here, there string) {
	const nodump, noatime, immutable, fsGetXattr, fsSetXattr = 0x40, 0x80, 0x10, 0x801c581f, 0x401c5820
	check(t, os.WriteFile(here+"/f", nil, 0o644))
	check(t, os.Mkdir(here+"/d", 0o755))
	b, x := make([]byte, 8), make([]byte, 28)
	order := binary.NativeEndian
	for _, file := range []string{"/f", "/d"} {
		for _, flags := range []uint32{0, nodump, nodump | noatime, noatime, 0} {
			order.PutUint32(b, flags)
			check(t, ioctl(t, there+file, unix.FS_IOC_SETFLAGS, b))
			order.PutUint32(b, ^flags)
			check(t, ioctl(t, here+file, unix.FS_IOC_GETFLAGS, b))
			if got := order.Uint32(b); got != flags {
				t.Errorf("flags of %s = %x, want %x", file, got, flags)
			}
			check(t, ioctl(t, here+file, fsGetXattr, x))
			if got := order.Uint32(x); got != flags&nodump<<1|flags&noatime>>1 {
				t.Errorf("flags of %s as xfs_io sees them = %x, those of lsattr are %x", file, got, flags)
			}
		}
		clear(x)
		order.PutUint32(x, 0x80)
		check(t, ioctl(t, here+file, fsSetXattr, x))
		check(t, ioctl(t, there+file, unix.FS_IOC_GETFLAGS, b))
		if got := order.Uint32(b); got != nodump {
			t.Errorf("flags of %s that xfs_io has set = %x, want nodump", file, got)
		}
		if n, err := unix.Listxattr(here+file, nil); n != 0 || err != nil {
			t.Errorf("%d bytes of names are listed, %v", n, err)
		}
		order.PutUint32(b, immutable)
		wantErr(t, "immutable", ioctl(t, here+file, unix.FS_IOC_SETFLAGS, b), syscall.EOPNOTSUPP)
	}
	if _, err := exec.LookPath("chattr"); err == nil {
		if out, err := exec.Command("chattr", "=A", there+"/d").CombinedOutput(); err != nil {
			t.Errorf("chattr: %v: %s", err, out)
		}
		if out, err := exec.Command("lsattr", "-d", here+"/d").CombinedOutput(); err != nil || !bytes.Contains(bytes.Fields(out)[0], []byte("A")) {
			t.Errorf("lsattr: %v: %s", err, out)
		}
	}
	wantErr(t, "another ioctl", ioctl(t, here+"/f", unix.TCGETS, make([]byte, 100)), syscall.ENOTTY)
}

// fiemap: refused; the row of SEEK_DATA covers its replacement.
func fiemap(t *testing.T, _ *camp, here, _ string) {
	check(t, os.WriteFile(here+"/f", pattern(100), 0o644))
	wantErr(t, "FIEMAP", ioctl(t, here+"/f", 0xc020660b, make([]byte, 32)), syscall.EOPNOTSUPP)
}
