package pitch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/mounts"
)

func TestWipe(t *testing.T) {
	dir := t.TempDir()
	outside, victim := filepath.Join(dir, "outside"), filepath.Join(dir, "tree")
	file := filepath.Join(outside, "keep")
	if err := errors.Join(os.Mkdir(outside, 0o755), os.WriteFile(file, []byte("x"), 0o600), os.Mkdir(victim, 0o755)); err != nil {
		t.Fatal(err)
	}
	for i := range 1500 { // more than one batch
		if err := os.WriteFile(filepath.Join(victim, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sub := filepath.Join(victim, "sub")
	if err := errors.Join(os.Mkdir(sub, 0o755), os.Symlink(outside, filepath.Join(sub, "dir")), os.Symlink(file, filepath.Join(sub, "file")),
		os.Symlink("/", filepath.Join(victim, "slash")), os.Symlink("loop", filepath.Join(victim, "loop")), os.Link(file, filepath.Join(victim, "hard")),
		unix.Mkfifo(filepath.Join(sub, "fifo"), 0o600), os.Chmod(sub, 0)); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 { // permissions do not apply to root
		if err := os.Chmod(sub, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := wipe(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	if exists(victim) {
		t.Error("the tree is still there")
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "x" {
		t.Errorf("what is outside = %q, %v", b, err)
	}
	if err := wipe(t.Context(), victim); err != nil {
		t.Errorf("wipe of what is gone = %v", err)
	}
	if err := wipe(t.Context(), filepath.Join(victim, "below")); err != nil {
		t.Errorf("wipe below what is gone = %v", err)
	}
}

func TestWipeOfALink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(target, 0o755), os.WriteFile(target+"/keep", nil, 0o600), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	if err := wipe(t.Context(), link); err != nil || exists(link) || !exists(target+"/keep") {
		t.Errorf("wipe of a link = %v", err)
	}
}

// TestOpenDir: a mount that a user made over a directory after it was uncovered is not opened, so it cannot block root.
func TestOpenDir(t *testing.T) {
	needFuse(t)
	top := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(top, "d"), 0o700), os.Symlink("d", filepath.Join(top, "link")), os.WriteFile(filepath.Join(top, "d/f"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	parent, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	d, err := openDir(int(parent.Fd()), "d")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	hanging(t, filepath.Join(top, "d"))
	if names, err := d.Readdirnames(-1); err != nil || len(names) != 1 {
		t.Errorf("the directory has %q, %v", names, err)
	}
	for name, want := range map[string]error{"d": unix.EXDEV, "link": unix.ENOTDIR, "none": unix.ENOENT} {
		if d, err := openDir(int(parent.Fd()), name); !errors.Is(err, want) {
			t.Errorf("openDir of %s = %v, %v, want %v", name, d, err, want)
		}
	}
}

// TestWipeDeep wipes a tree that is deeper than the number of descriptors a process gets, and with paths longer than
// the maximum path length.
func TestWipeDeep(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	if err := os.Mkdir(top, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 800 {
		if err := unix.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		fd = next
	}
	_ = unix.Close(fd)
	if err := wipe(t.Context(), top); err != nil || exists(top) {
		t.Errorf("wipe = %v", err)
	}
}

// TestWipeRace swaps a directory for a link out of the tree, over and over, while the tree is wiped.
func TestWipeRace(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := errors.Join(os.Mkdir(outside, 0o755), os.WriteFile(outside+"/keep", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		victim := filepath.Join(dir, "tree")
		if err := errors.Join(os.MkdirAll(victim+"/a/b", 0o755), os.Symlink(outside, victim+"/link")); err != nil {
			t.Fatal(err)
		}
		done, swapped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(swapped)
			for {
				select {
				case <-done:
					return
				default:
					_ = unix.Renameat2(unix.AT_FDCWD, victim+"/a", unix.AT_FDCWD, victim+"/link", unix.RENAME_EXCHANGE)
				}
			}
		}()
		err := wipe(t.Context(), victim)
		close(done)
		<-swapped
		if err != nil || exists(victim) {
			t.Fatalf("wipe = %v", err)
		}
		if !exists(outside + "/keep") {
			t.Fatal("wipe followed the link")
		}
	}
}

func TestWipeStops(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wipe(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("wipe = %v, want that it was cancelled", err)
	}
}

// TestWipeDetaches: mounts inside a tree are detached, however many there are, and their content is unchanged.
func TestWipeDetaches(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	outside, top := filepath.Join(dir, "outside"), filepath.Join(dir, "top")
	keep := filepath.Join(outside, "keep")
	deep := strings.Repeat("/d", maxDepth+1)
	if err := errors.Join(os.Mkdir(outside, 0o755), os.WriteFile(keep, nil, 0o644), os.MkdirAll(top+"/a/same", 0o755),
		os.Mkdir(top+"/a/stack", 0o755), os.MkdirAll(top+deep, 0o755), os.WriteFile(top+"/a/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	bind := func(from, to string) {
		t.Helper()
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			t.Skip("needs to mount: ", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) }) // if it still exists
	}
	bind(outside, top+"/a/same") // on the same device
	bind(keep, top+"/a/file")
	bind(outside, top+deep)
	stack(t, top+"/a/stack", 20)
	if err := os.Mkdir(top+"/a/stack/in", 0o755); err != nil {
		t.Fatal(err)
	}
	bind(outside, top+"/a/stack/in")
	bind(outside, top)
	bind(outside, top)
	if err := wipe(t.Context(), top); err != nil || exists(top) {
		t.Errorf("wipe = %v", err)
	}
	if under, err := mounts.Under(top); err != nil || len(under) > 0 {
		t.Errorf("%d mounts are left, %v", len(under), err)
	}
	if st, err := os.Stat(keep); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("what was mounted is now %v, %v", st, err)
	}
	if st, err := os.Stat(outside); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("the directory that was mounted is now %v, %v", st, err)
	}
}

// TestUncoverFollowsNothing: if a link to another mountpoint replaces a mountpoint, the other one stays mounted.
func TestUncoverFollowsNothing(t *testing.T) {
	dir := t.TempDir()
	mounted := filepath.Join(dir, "mounted")
	if err := errors.Join(os.Mkdir(mounted, 0o755), os.Symlink(mounted, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	stack(t, mounted, 1)
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, name := range []string{"link", "none"} {
		if n, err := uncover(t.Context(), int(d.Fd()), name); n != 0 || err != nil {
			t.Errorf("uncover %s = %d, %v", name, n, err)
		}
	}
	if at, err := mounts.At(mounted); err != nil || len(at) != 1 {
		t.Errorf("%d mounts are left, %v, want 1", len(at), err)
	}
}

// TestWipeTogether: an epilog and the next prolog can remove the same job concurrently; neither reports files that the
// other has removed as left behind, which would drain the node.
func TestWipeTogether(t *testing.T) {
	for range 5 {
		dir := filepath.Join(t.TempDir(), "17.0")
		for i := range 20 {
			sub := filepath.Join(dir, strconv.Itoa(i%5), strings.Repeat("d/", maxDepth+1), strconv.Itoa(i))
			if err := os.MkdirAll(sub, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(sub, "f"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for i, err := range wipeAll(context.Background(), []string{dir, dir, dir}) {
			if err != nil {
				t.Errorf("wiper %d: %v", i, err)
			}
		}
		if exists(dir) {
			t.Fatal("the directory is left")
		}
		if t.Failed() {
			return
		}
	}
}
