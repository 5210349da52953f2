package posix

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/integration/testcluster"
)

// TestPeers tests everything that other filesystems for jobs are known to get wrong. Two such cases are tested
// elsewhere: peers without the job's key, of another version or with mangled frames in datapath/rpc; the number of
// calls of a create in fsclient and integration/bench.
func TestPeers(t *testing.T) {
	c := pitch(t, testcluster.Config{})
	for _, tt := range []struct {
		name string
		test func(t *testing.T, c *camp, dirs []string)
	}{
		{"a forked child uses the mount", forked},
		{"O_EXCL across nodes", exclusiveProcesses},
		{"names that collide elsewhere", colliding},
		{"a hole is zeros", holes},
		{"times are kept", times},
		{"deep paths", deep},
		{"big directory", big},
		{"storm of directories", storm},
		{"a component of 256 bytes", long},
		{"a directory moved under itself", underItself},
		{"10,000 open handles", handles},
		{"a killed client", killedClient},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, c, c.dirs(t)) })
	}
}

func init() {
	chores["touch"] = touchChore
	chores["exclusive"] = exclusiveChore
	chores["mkdirs"] = mkdirsChore
	chores["write"] = writeChore
}

// touchChore works in a directory, and forks, as the workers of a data loader do.
func touchChore(args []string) error {
	dir := args[0]
	if err := os.Chdir(dir); err != nil {
		return err
	}
	for i := range 50 {
		name := fmt.Sprintf("of-%d-%d", os.Getpid(), i)
		if err := errors.Join(os.WriteFile(name, []byte(name), 0o644), os.Remove(name)); err != nil {
			return err
		}
	}
	return nil
}

// forked: shells on every node fork without exec, and inherit descriptors of the mount.
func forked(t *testing.T, c *camp, dirs []string) {
	var wg sync.WaitGroup
	for _, dir := range dirs {
		wg.Go(func() {
			out, err := shell(dir, `exec 3>log; for i in 1 2 3 4; do ( echo $i >f$i; read -r x <f$i; echo $x >&3; ls >/dev/null; ( rm f$i ) ) & done; wait; sort log >&2`)
			if err != nil || out != "1\n2\n3\n4\n" {
				t.Errorf("%v: %q", err, out)
			}
		})
		check(t, os.Mkdir(dir+"/own", 0o755))
		check(t, os.RemoveAll(dir+"/own"))
		wg.Wait() // in sequence: they use the same names
	}
	var all []*child
	for i := range 16 {
		all = append(all, start(t, "touch", dirs[i%len(dirs)]))
	}
	for _, p := range all {
		p.done(t)
	}
}

// exclusiveChore tries to create the same names as all others, and prints the ones it created.
func exclusiveChore(args []string) error {
	held()
	for i := range 20 {
		name := filepath.Join(args[0], strconv.Itoa(i))
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, syscall.EEXIST) {
			continue
		}
		if err != nil {
			return err
		}
		fmt.Println(i)
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// exclusiveProcesses: 64 processes on 4 nodes create the same names; each name is created by one.
func exclusiveProcesses(t *testing.T, _ *camp, dirs []string) {
	var all []*child
	for i := range 64 {
		all = append(all, start(t, "exclusive", dirs[i%len(dirs)]))
	}
	for _, p := range all {
		_ = p.in.Close() // start now
	}
	var made []string
	for _, p := range all {
		made = append(made, strings.Fields(p.done(t))...)
	}
	if slices.Sort(made); len(slices.Compact(slices.Clone(made))) != 20 || len(made) != 20 {
		t.Errorf("20 names were made %d times: %v", len(made), made)
	}
}

// colliding: names that a system with flattened paths would confuse.
func colliding(t *testing.T, _ *camp, dirs []string) {
	check(t, os.Mkdir(dirs[0]+"/a", 0o755))
	names := []string{"a/b", "a:b", "a\\b", "a%2fb", "a b", "A", "a.", ".a", "a\n"}
	for i, name := range names {
		check(t, os.WriteFile(filepath.Join(dirs[i%4], name), []byte(name), 0o644))
	}
	for _, name := range names {
		for _, dir := range dirs {
			wantFile(t, filepath.Join(dir, name), []byte(name))
		}
	}
}

// holes: a file continues after a hole.
func holes(t *testing.T, _ *camp, dirs []string) {
	f, err := os.Create(dirs[0] + "/f")
	check(t, err)
	for _, off := range []int64{0, 5 << 20, 9<<20 + 1} {
		_, err := f.WriteAt([]byte("x"), off)
		check(t, err)
	}
	check(t, f.Close())
	want := make([]byte, 9<<20+2)
	want[0], want[5<<20], want[9<<20+1] = 'x', 'x', 'x'
	for _, dir := range dirs {
		wantFile(t, dir+"/f", want)
	}
}

func times(t *testing.T, _ *camp, dirs []string) {
	before := time.Now().Add(-time.Second)
	check(t, os.WriteFile(dirs[0]+"/f", nil, 0o644))
	st := stat(t, dirs[1]+"/f")
	for what, ts := range map[string]syscall.Timespec{"atime": st.Atim, "mtime": st.Mtim, "ctime": st.Ctim} {
		if at := time.Unix(ts.Unix()); at.Before(before) || at.After(time.Now().Add(time.Second)) {
			t.Errorf("%s = %v", what, at)
		}
	}
}

// deep: a tree whose paths are longer than PATH_MAX, entered step by step.
func deep(t *testing.T, _ *camp, dirs []string) {
	const levels = 300
	name := strings.Repeat("d", 20)
	fds := make([]int, 2) // descriptors of the innermost directory, here and there
	for i := range fds {
		fd, err := unix.Open(dirs[i], unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		check(t, err)
		fds[i] = fd
	}
	for level := range levels {
		check(t, unix.Mkdirat(fds[level%2], name, 0o755))
		for i := range fds {
			fd, err := unix.Openat(fds[i], name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
			check(t, err)
			check(t, unix.Close(fds[i]))
			fds[i] = fd
		}
	}
	fd, err := unix.Openat(fds[0], "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	check(t, err)
	_, err = unix.Write(fd, []byte("deep"))
	check(t, errors.Join(err, unix.Close(fd)))
	fd, err = unix.Openat(fds[1], "f", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	check(t, err)
	b := make([]byte, 10)
	if n, err := unix.Read(fd, b); string(b[:max(n, 0)]) != "deep" {
		t.Errorf("read %q, %v there", b[:max(n, 0)], err)
	}
	for _, fd := range append(fds, fd) {
		check(t, unix.Close(fd))
	}
	_, err = os.Lstat(dirs[0] + strings.Repeat("/"+name, levels))
	wantErr(t, "a path that is too long", err, syscall.ENAMETOOLONG)
	check(t, os.RemoveAll(dirs[1]+"/"+name))
}

// big: a directory that four nodes fill concurrently is listed completely on all nodes.
func big(t *testing.T, _ *camp, dirs []string) {
	const each = 3000
	var wg sync.WaitGroup
	for i, dir := range dirs {
		wg.Go(func() {
			for k := range each {
				if err := os.WriteFile(fmt.Sprintf("%s/%d-%05d", dir, i, k), nil, 0o644); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, dir := range dirs {
		d, err := os.Open(dir)
		check(t, err)
		names, err := d.Readdirnames(-1)
		check(t, errors.Join(err, d.Close()))
		slices.Sort(names)
		if n := len(names); n != each*len(dirs) || len(slices.Compact(names)) != n {
			t.Errorf("%d names, %d different, want %d", n, len(slices.Compact(names)), each*len(dirs))
		}
	}
	check(t, os.RemoveAll(dirs[2]))
}

// mkdirsChore makes directories; all of these processes make and use the same parent.
func mkdirsChore(args []string) error {
	held()
	for i := range 10 {
		if err := os.MkdirAll(fmt.Sprintf("%s/shared%d/%s/sub", args[0], i, args[1]), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// storm: 64 processes on 4 nodes make directories concurrently.
func storm(t *testing.T, _ *camp, dirs []string) {
	var all []*child
	for i := range 64 {
		all = append(all, start(t, "mkdirs", dirs[i%len(dirs)], "rank"+strconv.Itoa(i)))
	}
	for _, p := range all {
		_ = p.in.Close()
	}
	for _, p := range all {
		p.done(t)
	}
	for i := range 10 {
		path := fmt.Sprintf("/shared%d", i)
		if es, err := os.ReadDir(dirs[i%len(dirs)] + path); err != nil || len(es) != 64 {
			t.Errorf("%s has %d entries, %v, want 64", path, len(es), err)
		}
		testcluster.Eventually(t, "the links of the shared directory are counted", func() bool {
			return stat(t, dirs[(i+1)%len(dirs)]+path).Nlink == 66
		})
	}
	check(t, os.RemoveAll(dirs[3]))
}

// long: a name one byte above the limit is ENAMETOOLONG for every operation.
func long(t *testing.T, _ *camp, dirs []string) {
	fits, not := strings.Repeat("n", 255), strings.Repeat("n", 256)
	check(t, os.WriteFile(dirs[0]+"/f", nil, 0o644))
	for i, dir := range dirs {
		path := filepath.Join(dir, not)
		_, err := os.Stat(path)
		for what, err := range map[string]error{
			"stat": err, "mkdir": os.Mkdir(path, 0o755), "create": os.WriteFile(path, nil, 0o644), "unlink": syscall.Unlink(path),
			"rmdir": syscall.Rmdir(path), "symlink": os.Symlink("f", path), "link": os.Link(dir+"/f", path), "rename to": os.Rename(dir+"/f", path),
			"rename from": os.Rename(path, dir+"/f"), "below": os.WriteFile(path+"/x", nil, 0o644), "mkfifo": syscall.Mkfifo(path, 0o644),
		} {
			wantErr(t, what, err, syscall.ENAMETOOLONG)
		}
		check(t, os.WriteFile(filepath.Join(dir, fits), pattern(i), 0o644))
		wantFile(t, filepath.Join(dirs[0], fits), pattern(i))
	}
}

func underItself(t *testing.T, _ *camp, dirs []string) {
	check(t, os.MkdirAll(dirs[0]+"/a/b/c", 0o755))
	for _, dir := range dirs {
		for _, to := range []string{"/a/x", "/a/b/x", "/a/b/c/x", "/a/b/c"} {
			wantErr(t, "rename of a to "+to, syscall.Rename(dir+"/a", dir+to), syscall.EINVAL)
		}
		wantErr(t, "rename of a/b to a", syscall.Rename(dir+"/a/b", dir+"/a"), syscall.ENOTEMPTY)
	}
}

// handles: 10,000 files are open at once.
func handles(t *testing.T, _ *camp, dirs []string) {
	const n = 10_000
	var lim syscall.Rlimit
	check(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim))
	if lim.Max < n+1000 {
		t.Skipf("this process may have %d files open", lim.Max)
	}
	check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: lim.Max, Max: lim.Max}))
	var fds []int
	defer func() {
		for _, fd := range fds {
			check(t, unix.Close(fd))
		}
	}()
	for i := range n {
		fd, err := unix.Open(fmt.Sprintf("%s/%d", dirs[i%4], i%2500), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
		check(t, err)
		fds = append(fds, fd)
	}
	for i, fd := range fds {
		_, err := unix.Pwrite(fd, []byte{byte(i / 2500)}, int64(i/2500))
		check(t, err)
	}
	for _, i := range []int{0, 1, 2499} {
		b := make([]byte, 10)
		testcluster.Eventually(t, "what all wrote is published", func() bool {
			got, err := unix.Pread(fds[i], b, 0)
			return err == nil && got == 4 && b[3] == 3
		})
	}
}

// writeChore writes until it is killed.
func writeChore(args []string) error {
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	for off := int64(0); ; off += 1 << 20 {
		if _, err := f.WriteAt(pattern(1<<20), off%(64<<20)); err != nil {
			return err
		}
	}
}

// killedClient: a process that is killed during a write leaves a file that others can read and remove, and nothing
// hangs.
func killedClient(t *testing.T, _ *camp, dirs []string) {
	p := start(t, "write", dirs[0]+"/f")
	testcluster.Eventually(t, "it writes", func() bool {
		st, err := os.Stat(dirs[1] + "/f")
		return err == nil && st.Size() >= 4<<20
	})
	check(t, p.Process.Kill())
	_ = p.Wait() // killed
	b, err := os.ReadFile(dirs[2] + "/f")
	if err != nil || len(b) < 4<<20 || string(b[:100]) != string(pattern(100)) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	check(t, os.Remove(dirs[3]+"/f"))
}
