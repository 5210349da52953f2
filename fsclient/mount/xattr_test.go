package mount_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestWriteIsOneRequest: a write to the page cache causes one request.
func TestWriteIsOneRequest(t *testing.T) {
	var u unix.Utsname
	check(t, unix.Uname(&u))
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil || major < 5 || major == 5 && minor < 11 {
		t.Skip("before Linux 5.11 the kernel asks for security.capability before each write")
	}
	j := newJob(t)
	f, err := os.OpenFile(j.scratch(0, "f"), os.O_CREATE|os.O_RDWR, 0o644)
	check(t, err)
	defer f.Close()
	before := j.mounts[0].Stats().Calls
	for range 100 {
		_, err := f.Write([]byte("0123456789"))
		check(t, err)
	}
	after := j.mounts[0].Stats().Calls
	if n := after["write"] - before["write"]; n != 100 {
		t.Errorf("%d writes, want 100", n)
	}
	if n := after["getxattr"] - before["getxattr"]; n > 1 {
		t.Errorf("%d requests for attributes before 100 writes, want 1", n)
	}
}

// xattr reads an attribute as programs do: first its size, then its value.
func xattr(path, name string) (string, error) {
	n, err := unix.Lgetxattr(path, name, nil)
	if err != nil {
		return "", err
	}
	buf := make([]byte, n)
	if n > 0 {
		if n, err = unix.Lgetxattr(path, name, buf); err != nil {
			return "", err
		}
	}
	return string(buf[:n]), nil
}

func wantXattr(t *testing.T, path, name, want string) {
	t.Helper()
	if got, err := xattr(path, name); err != nil || got != want {
		t.Errorf("%s of %s = %.40q (%d bytes), %v, want %.40q", name, path, got, len(got), err, want)
	}
}

// listXattrs splits a zero-terminated list of names.
func listXattrs(t *testing.T, path string) []string {
	t.Helper()
	buf := make([]byte, metadata.MaxXattrList)
	n, err := unix.Llistxattr(path, buf)
	check(t, err)
	return strings.FieldsFunc(string(buf[:n]), func(r rune) bool { return r == 0 })
}

// testXattrs: attributes set on one node are visible on the other immediately.
func testXattrs(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", []byte("x"), 0o644))
	check(t, os.Mkdir(a+"/d", 0o755))
	big := strings.Repeat("\x00v", metadata.MaxXattrValue/2)
	for _, name := range []string{"/f", "/d"} {
		check(t, unix.Setxattr(a+name, "user.one", []byte("1"), unix.XATTR_CREATE))
		check(t, unix.Setxattr(b+name, "user.big", []byte(big), 0))
		check(t, unix.Setxattr(b+name, "user.empty", nil, 0))
		for _, p := range []string{a + name, b + name} {
			wantXattr(t, p, "user.one", "1")
			wantXattr(t, p, "user.big", big)
			wantXattr(t, p, "user.empty", "")
			if got := listXattrs(t, p); strings.Join(got, " ") != "user.big user.empty user.one" {
				t.Errorf("attributes of %s = %q", p, got)
			}
		}
		_, list := unix.Llistxattr(b+name, make([]byte, 3))
		_, get := unix.Lgetxattr(b+name, "user.big", make([]byte, 3))
		wantErr(t, "list in too little room", list, syscall.ERANGE)
		wantErr(t, "get in too little room", get, syscall.ERANGE)
		wantErr(t, "create of what is there", unix.Setxattr(b+name, "user.one", nil, unix.XATTR_CREATE), syscall.EEXIST)
		wantErr(t, "replace of nothing", unix.Setxattr(b+name, "user.none", nil, unix.XATTR_REPLACE), syscall.ENODATA)
		wantErr(t, "a value too long", unix.Setxattr(b+name, "user.x", make([]byte, metadata.MaxXattrValue+1), 0), syscall.E2BIG)
		wantErr(t, "a name too long", unix.Setxattr(b+name, "user."+strings.Repeat("n", 251), nil, 0), syscall.ERANGE)
		for _, bare := range []string{"user.", "trusted.", "security."} {
			_, get := xattr(b+name, bare)
			wantErr(t, "get of "+bare, get, syscall.EINVAL)
			wantErr(t, "set of "+bare, unix.Setxattr(b+name, bare, []byte("x"), 0), syscall.EINVAL)
			wantErr(t, "remove of "+bare, unix.Removexattr(b+name, bare), syscall.EINVAL)
		}
		check(t, unix.Removexattr(b+name, "user.one"))
		wantErr(t, "second remove", unix.Removexattr(a+name, "user.one"), syscall.ENODATA)
		_, gone := xattr(a+name, "user.one")
		wantErr(t, "get of what was removed", gone, syscall.ENODATA)
	}
	check(t, os.Rename(a+"/f", a+"/d/g"))
	wantXattr(t, b+"/d/g", "user.big", big)
	check(t, os.WriteFile(a+"/list", nil, 0o644))
	var full error
	for i := 0; i < 1000 && full == nil; i++ {
		full = unix.Setxattr(a+"/list", "user."+strings.Repeat(string(rune('a'+i%26)), 240)+string(rune('a'+i/26)), nil, 0)
	}
	wantErr(t, "more names than a list shows", full, syscall.ENOSPC)
	if got := listXattrs(t, b+"/list"); len(got) < 200 {
		t.Errorf("%d names listed", len(got))
	}
}

// testXattrKinds: names and types for which Linux, or a filesystem without ACLs and labels, returns an error.
func testXattrKinds(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", nil, 0o644))
	check(t, os.Symlink("f", a+"/s"))
	check(t, unix.Mkfifo(a+"/p", 0o644))
	for _, tt := range []struct {
		path, name    string
		set, get, del error
	}{
		{"/f", "trusted.x", nil, syscall.ENODATA, nil},
		{"/f", "security.x", nil, syscall.ENODATA, nil},
		{"/s", "trusted.x", nil, syscall.ENODATA, nil},
		{"/f", "security.ima", syscall.EOPNOTSUPP, syscall.ENODATA, syscall.ENODATA},
		{"/f", "bivouac.flags", syscall.EOPNOTSUPP, syscall.EOPNOTSUPP, syscall.EOPNOTSUPP},
		{"/f", "system.posix_acl_access", syscall.EOPNOTSUPP, syscall.EOPNOTSUPP, syscall.EOPNOTSUPP},
		{"", "system.posix_acl_default", syscall.EOPNOTSUPP, syscall.EOPNOTSUPP, syscall.EOPNOTSUPP},
		{"/f", "system.x", syscall.EOPNOTSUPP, syscall.EOPNOTSUPP, syscall.EOPNOTSUPP},
		{"/f", "osx.x", syscall.EOPNOTSUPP, syscall.EOPNOTSUPP, syscall.EOPNOTSUPP},
		{"/s", "user.x", syscall.EPERM, syscall.ENODATA, syscall.EPERM},
		{"/p", "user.x", syscall.EPERM, syscall.ENODATA, syscall.EPERM},
	} {
		// An ACL entry, which the kernel checks before the request.
		acl := []byte("\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x04\x00\x04\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff")
		_, get := xattr(b+tt.path, tt.name)
		wantErr(t, "lsetxattr "+tt.name+" of "+tt.path, unix.Lsetxattr(a+tt.path, tt.name, acl, 0), tt.set)
		wantErr(t, "lgetxattr "+tt.name+" of "+tt.path, get, tt.get)
		wantErr(t, "lremovexattr "+tt.name+" of "+tt.path, unix.Lremovexattr(a+tt.path, tt.name), tt.del)
	}
}

// TestXattrCosts: the xattr requests of the kernel and of ls for every file cost no remote call.
func TestXattrCosts(t *testing.T) {
	j := newJob(t)
	check(t, os.WriteFile(j.scratch(0, "f"), nil, 0o644))
	f, err := os.Open(j.scratch(1, "f"))
	check(t, err)
	defer f.Close()
	calls := func() int64 {
		s := j.clients[1].Stats()
		return s.MetaLocal + s.MetaRemote
	}
	before, asked := calls(), j.mounts[1].Stats()
	for name, want := range map[string]error{
		"security.capability": syscall.ENODATA, "security.selinux": syscall.EOPNOTSUPP, "system.posix_acl_access": syscall.EOPNOTSUPP,
	} {
		_, err := unix.Fgetxattr(int(f.Fd()), name, make([]byte, 100))
		wantErr(t, name, err, want)
	}
	if n := calls() - before; n != 0 {
		t.Errorf("%d calls of the client, want none", n)
	}
	if n := j.mounts[1].Stats().Calls["getxattr"] - asked.Calls["getxattr"]; n != 3 {
		t.Errorf("%d requests of the kernel, want 3", n)
	}
}

// TestLayouts: new files inherit the layout of their directory.
func TestLayouts(t *testing.T) {
	j := newJob(t)
	a, b := j.scratch(0, "d"), j.scratch(1, "d")
	check(t, os.Mkdir(a, 0o755))
	wantXattr(t, b, "user.bivouac.layout", "stripe")
	check(t, unix.Setxattr(b, "user.bivouac.layout", []byte("local"), 0))
	check(t, unix.Setxattr(a, "user.bivouac.chunk", []byte("256K"), 0))
	check(t, os.Mkdir(a+"/sub", 0o755))
	for i, dir := range []string{a + "/sub", b + "/sub"} {
		host := []string{"n0", "n1"}[i]
		path := dir + "/by-" + host
		check(t, os.WriteFile(path, pattern(5<<20), 0o644))
		wantXattr(t, path, "user.bivouac.layout", "local")
		wantXattr(t, path, "user.bivouac.chunk", "262144")
		wantXattr(t, path, "user.bivouac.copies", "1")
		wantXattr(t, path, "user.bivouac.node", host)
		wantFile(t, j.scratch(1-i, "d", "sub", "by-"+host), pattern(5<<20))
		var st unix.Stat_t
		check(t, unix.Stat(path, &st))
		for k, d := range j.data {
			n, err := d.ReadAt(ctx, metadata.Ino(st.Ino), make([]byte, 100), 0)
			if here := k == i; err != nil || (n > 0) != here {
				t.Errorf("node %d has %d bytes of %s, %v", k, n, path, err)
			}
		}
	}
	check(t, unix.Removexattr(a+"/sub", "user.bivouac.layout"))
	check(t, os.WriteFile(a+"/sub/s", pattern(5<<20), 0o644))
	if hosts, err := xattr(b+"/sub/s", "user.bivouac.node"); strings.Count(hosts, ",") != 2 || err != nil {
		t.Errorf("nodes of a striped file = %q, %v", hosts, err)
	}
	if got := listXattrs(t, a); len(got) != 0 {
		t.Errorf("attributes of a directory with a layout = %q, want none listed", got)
	}
}

// TestLayoutOfFile: the layout of an empty file can be set while it is not open; invalid
// layouts are refused.
func TestLayoutOfFile(t *testing.T) {
	j := newJob(t)
	a, b := j.scratch(0, "f"), j.scratch(1, "f")
	check(t, os.WriteFile(a, nil, 0o644))
	check(t, unix.Setxattr(b, "user.bivouac.layout", []byte("local"), 0))
	check(t, unix.Setxattr(b, "user.bivouac.chunk", []byte("64k"), 0))
	wantXattr(t, a, "user.bivouac.node", "n1")
	f, err := os.OpenFile(a, os.O_WRONLY, 0)
	check(t, err)
	for _, tt := range []struct {
		name, value string
		want        error
	}{
		{"layout", "stripe", syscall.EBUSY},
		{"layout", "raid", syscall.EINVAL},
		{"chunk", "100000", syscall.EINVAL},
		{"chunk", "4K", syscall.EINVAL},
		{"chunk", "2G", syscall.EINVAL},
		{"chunk", "-1", syscall.EINVAL},
		{"copies", "2", syscall.EBUSY},
		{"copies", "1", syscall.EBUSY},
		{"copies", "3", syscall.EINVAL},
		{"node", "n0", syscall.EPERM},
		{"other", "x", syscall.EPERM},
	} {
		err := unix.Setxattr(a, "user.bivouac."+tt.name, []byte(tt.value), 0)
		wantErr(t, tt.name+"="+tt.value, err, tt.want)
	}
	_, err = f.Write(pattern(1 << 20))
	check(t, err)
	check(t, f.Close())
	wantErr(t, "layout of a file with data", unix.Setxattr(b, "user.bivouac.layout", []byte("stripe"), 0), syscall.EBUSY)
	wantFile(t, b, pattern(1<<20))
	for _, name := range []string{"layout", "chunk", "node", "copies"} {
		if _, err := xattr(j.dirs[0]+"/data/set/big", "user.bivouac."+name); err != nil {
			t.Errorf("%s of a sealed file: %v", name, err)
		}
	}
	wantErr(t, "layout of a set", unix.Setxattr(j.dirs[0]+"/data/set", "user.bivouac.layout", []byte("local"), 0), syscall.EROFS)
}
