package mount_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata"
)

func TestTree(t *testing.T) { bothWays(t, testTree) }

func testTree(t *testing.T, j *job) {
	root := j.dirs[0]
	var names []string
	es, err := os.ReadDir(root)
	check(t, err)
	for _, e := range es {
		names = append(names, e.Name())
	}
	if fmt.Sprint(names) != "[.bivouac data scratch]" {
		t.Errorf("the root has %q", names)
	}
	if st := stat(t, root); st.Mode != syscall.S_IFDIR|0o700 || st.Ino != 1 {
		t.Errorf("root = mode %o, inode %d", st.Mode, st.Ino)
	}
	for _, name := range []string{"status", "stats", "map", "control"} {
		wantFile(t, filepath.Join(root, ".bivouac", name), []byte("this is "+name+"\n"))
	}
	_, none := os.Stat(root + "/.bivouac/none")
	wantErr(t, "stat", none, syscall.ENOENT)
	for what, err := range map[string]error{
		"create in the root":    os.WriteFile(root+"/f", nil, 0o644),
		"mkdir in the root":     os.Mkdir(root+"/d", 0o755),
		"rmdir of scratch":      syscall.Rmdir(root + "/scratch"),
		"rename of scratch":     os.Rename(root+"/scratch", root+"/x"),
		"write of a status":     os.WriteFile(root+"/.bivouac/status", nil, 0o644),
		"chmod of the root":     os.Chmod(root, 0o777),
		"create in data":        os.WriteFile(root+"/data/f", nil, 0o644),
		"rename out of a set":   os.Rename(root+"/data/set/big", root+"/scratch/big"),
		"create in a set":       os.WriteFile(root+"/data/set/f", nil, 0o644),
		"write in a set":        os.WriteFile(root+"/data/set/big", nil, 0o644),
		"unlink in a set":       os.Remove(root + "/data/set/train/000"),
		"mkdir in a set":        os.Mkdir(root+"/data/set/d", 0o755),
		"chmod in a set":        os.Chmod(root+"/data/set/big", 0o777),
		"truncate in a set":     os.Truncate(root+"/data/set/big", 0),
		"symlink in a set":      os.Symlink("x", root+"/data/set/s"),
		"setxattr in a set":     unix.Setxattr(root+"/data/set/big", "user.x", []byte("y"), 0),
		"link of a set's file":  os.Link(root+"/data/set/big", root+"/data/set/b"),
		"rename within the set": os.Rename(root+"/data/set/big", root+"/data/set/b"),
	} {
		want := syscall.EROFS
		if j.covered && what == "rename out of a set" {
			want = syscall.EXDEV
		}
		wantErr(t, what, err, want)
	}
	wantErr(t, "link from a set", os.Link(root+"/data/set/big", root+"/scratch/big"), syscall.EXDEV)
	var st syscall.Statfs_t
	check(t, syscall.Statfs(root, &st))
	if st.Blocks == 0 || st.Bavail == 0 || st.Bavail > st.Blocks || st.Namelen != 255 {
		t.Errorf("statfs = %+v", st)
	}
}

func TestSealed(t *testing.T) { bothWays(t, testSealed) }

func testSealed(t *testing.T, j *job) {
	for i := range j.dirs {
		set := filepath.Join(j.dirs[i], "data", "set")
		for k := range sealedFiles {
			wantFile(t, fmt.Sprintf("%s/train/%03d", set, k), sealedContent(k))
		}
		wantFile(t, set+"/big", pattern(sealedBig))
		wantFile(t, set+"/link", sealedContent(0))
		if st := stat(t, set+"/big"); st.Mode != syscall.S_IFREG|0o444 || st.Mtim.Nano() != 1e18 || st.Size != sealedBig {
			t.Errorf("stat = %+v", st)
		}
	}
}

// TestSealedIsCached: the second pass over a dataset costs no lookup, getattr, read or flush.
func TestSealedIsCached(t *testing.T) {
	j := newJob(t)
	set := filepath.Join(j.dirs[0], "data", "set")
	pass := func() {
		es, err := os.ReadDir(set + "/train")
		if err != nil || len(es) != sealedFiles {
			t.Fatalf("ReadDir = %d, %v", len(es), err)
		}
		for k, e := range es {
			got, err := os.ReadFile(filepath.Join(set, "train", e.Name()))
			if err != nil || !bytes.Equal(got, sealedContent(k)) {
				t.Fatalf("%s has %d bytes, %v", e.Name(), len(got), err)
			}
			_, err = os.Stat(filepath.Join(set, "train", "none"+e.Name()))
			wantErr(t, "stat", err, syscall.ENOENT)
		}
	}
	pass()
	was := j.mounts[0].Stats().Calls
	if was["flush"] != 0 {
		t.Errorf("%d flushes of files that were only read", was["flush"])
	}
	pass()
	now := j.mounts[0].Stats().Calls
	for _, op := range []string{"getattr", "read"} {
		if n := now[op] - was[op]; n > sealedFiles/4 { // of data/, which changes
			t.Errorf("%d more of %s in the second pass", n, op)
		}
	}
	if n := now["lookup"] - was["lookup"]; n > sealedFiles/4 { // of the dataset's name, which can vanish
		t.Errorf("%d more lookups in the second pass", n)
	}
	if s := j.clients[0].Stats(); s.MetaRemote != 0 {
		t.Errorf("client = %+v, want no call to another node for metadata", s)
	}
}

// TestSealedIsLookedUpOnce: lookup and open of a file cost one lookup in the manifest, with the same result as an open
// alone.
func TestSealedIsLookedUpOnce(t *testing.T) {
	j := newJob(t)
	c := j.clients[0]
	path := "data/set/big"
	st := stat(t, filepath.Join(j.dirs[0], filepath.Dir(path)))
	was := c.Stats().MetaSealed
	e, err := c.Lookup(ctx, metadata.Ino(st.Ino), filepath.Base(path))
	check(t, err)
	f, err := c.Open(ctx, e.Ino)
	check(t, err)
	defer func() { check(t, f.Close(ctx)) }()
	if n := c.Stats().MetaSealed - was; n != 1 {
		t.Errorf("%d lookups in the manifest, want 1", n)
	}
	other, err := j.clients[1].Getattr(ctx, e.Ino) // has not looked it up
	check(t, err)
	if got := f.Attr(); got != other || got != *e.Attr {
		t.Errorf("attributes %+v of the open file, %+v looked up, want %+v", got, *e.Attr, other)
	}
}

// TestSealedIsListed: after a listing of a whole directory, as by find, the kernel has the attributes of all entries.
func TestSealedIsListed(t *testing.T) { bothWays(t, testSealedIsListed) }

func testSealedIsListed(t *testing.T, j *job) {
	train := filepath.Join(j.dirs[0], "data", "set", "train")
	fd, err := unix.Open(train, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	check(t, err)
	defer unix.Close(fd)
	var names []string
	for buf := make([]byte, 1000); ; { // several requests
		n, err := unix.ReadDirent(fd, buf)
		check(t, err)
		if n == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	if len(names) != sealedFiles {
		t.Fatalf("%d names, want %d", len(names), sealedFiles)
	}
	was := j.mounts[0].Stats().Calls
	for i, name := range names {
		var st unix.Stat_t
		check(t, unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW))
		if want := int64(len(sealedContent(i))); st.Size != want {
			t.Errorf("%s has %d bytes, want %d", name, st.Size, want)
		}
	}
	now := j.mounts[0].Stats().Calls
	for _, op := range []string{"lookup", "getattr"} {
		if n := now[op] - was[op]; n != 0 {
			t.Errorf("%d of %s for %d entries, want none", n, op, len(names))
		}
	}
	if was["readdirplus"] < 2 || was["readdir"] != 0 {
		t.Errorf("requests = %v, want several of readdirplus and none of readdir", was)
	}
}

func TestBadMountPoint(t *testing.T) {
	j := newJob(t)
	_, err := mount.New(mount.Config{Client: j.clients[0], Dir: filepath.Join(t.TempDir(), "none")})
	wantErr(t, "mount", err, syscall.ENOENT)
}
