package posix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/integration/testcluster"
)

func init() {
	chores["map"] = mapChore
	chores["append"] = appendChore
}

// sealedRealm: nothing can be changed, and known attributes cost no further call.
func sealedRealm(t *testing.T, c *camp, here, _ string) {
	check(t, os.WriteFile(here+"/f", nil, 0o644))
	for _, m := range c.mounts {
		set := filepath.Join(m.Data, "set")
		_, create := os.Create(set + "/new")
		_, write := os.OpenFile(set+"/d/01", os.O_WRONLY, 0)
		for what, err := range map[string]error{
			"create": create, "open for writing": write, "mkdir": os.Mkdir(set+"/new", 0o755), "unlink": os.Remove(set + "/d/01"),
			"rmdir": syscall.Rmdir(set + "/d"), "rename": os.Rename(set+"/d", set+"/e"), "symlink": os.Symlink("x", set+"/new"),
			"link": os.Link(set+"/d/01", set+"/new"), "chmod": os.Chmod(set+"/d/01", 0o600), "truncate": os.Truncate(set+"/d/01", 0),
			"utimens": os.Chtimes(set+"/d/01", time.Now(), time.Now()), "setxattr": unix.Setxattr(set+"/d/01", "user.x", nil, 0),
		} {
			if !errors.Is(err, syscall.EROFS) && !errors.Is(err, syscall.EACCES) { // permissions are checked first
				t.Errorf("%s on node %d = %v, want EROFS", what, m.Node, err)
			}
		}
		for i := range 20 {
			wantFile(t, fmt.Sprintf("%s/d/%02d", set, i), pattern(1000*i))
		}
		before := m.Stats().Calls
		for range 10 {
			stat(t, set+"/d/05")
			wantFile(t, set+"/d/05", pattern(5000))
		}
		after := m.Stats().Calls
		for _, op := range []string{"lookup", "read"} {
			if after[op] > before[op]+2 { // data and set, which the kernel may have forgotten
				t.Errorf("node %d was asked for %d more %s", m.Node, after[op]-before[op], op)
			}
		}
	}
}

// mapChore prints the first byte of a mapping, waits, accesses the file in another way, and prints the byte again.
func mapChore(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	fmt.Printf("%c\n", m[0])
	held()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, 0); err != nil {
		return err
	}
	fmt.Printf("%c%c", b[0], m[0])
	return nil
}

// openRead: close-to-open.
func openRead(t *testing.T, _ *camp, here, there string) {
	for i, size := range []int{0, 1, 4096, 1<<20 - 1, 3<<20 + 3, 10} {
		from, to := here, there
		if i%2 == 1 {
			from, to = there, here
		}
		check(t, os.WriteFile(from+"/f", pattern(size), 0o644))
		wantFile(t, to+"/f", pattern(size))
		wantFile(t, from+"/f", pattern(size))
	}
	f, err := os.Create(there + "/g")
	check(t, err)
	defer f.Close()
	old, err := os.Open(here + "/g")
	check(t, err)
	defer old.Close()
	_, err = f.Write(bytes.Repeat([]byte("a"), 4096))
	check(t, err)
	check(t, f.Sync())
	wantFile(t, here+"/g", bytes.Repeat([]byte("a"), 4096))
	b := make([]byte, 5000)
	if n, err := old.ReadAt(b, 0); n != 4096 || b[0] != 'a' {
		t.Errorf("what was open before reads %d, %v after fsync there", n, err)
	}
	p := start(t, "map", here+"/g")
	testcluster.Eventually(t, "the file is mapped", func() bool {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.Process.Pid))
		return err == nil && strings.Contains(string(maps), "/g\n")
	})
	_, err = f.WriteAt(bytes.Repeat([]byte("b"), 4096), 0)
	check(t, err)
	check(t, f.Sync())
	if out := p.done(t); out != "a\nbb" && out != "b\nbb" {
		t.Errorf("the mapping says %q, want a and then b", out)
	}
}

// write: visible here at once, there within about a second, without a close.
func write(t *testing.T, _ *camp, here, there string) {
	f, err := os.Create(here + "/f")
	check(t, err)
	defer f.Close()
	check(t, os.WriteFile(there+"/g", pattern(10), 0o644))
	_, err = f.Write(pattern(5000))
	check(t, err)
	wantFile(t, here+"/f", pattern(5000))
	testcluster.Eventually(t, "what is not closed is seen there", func() bool {
		_, err := f.WriteAt(pattern(5000), 0)
		b, rerr := os.ReadFile(there + "/f")
		return errors.Join(err, rerr) == nil && bytes.Equal(b, pattern(5000))
	})
	var lim unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &lim))
	_, err = f.WriteAt([]byte("x"), 1<<62)
	if err == nil || f.Close() != nil {
		t.Errorf("a write at 2^62 = %v, and close has to be well", err)
	}
}

// appendChore appends lines, each with one write.
func appendChore(args []string) error {
	f, err := os.OpenFile(args[0], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	held()
	for i := range 100 {
		if _, err := fmt.Fprintf(f, "%s %04d %s\n", args[1], i, strings.Repeat("x", 3*i)); err != nil {
			return err
		}
	}
	return f.Close()
}

// appends: processes on all nodes append to one file.
func appends(t *testing.T, c *camp, _, _ string) {
	var all []*child
	for i := range 8 {
		all = append(all, start(t, "append", c.mounts[i%len(c.mounts)].Scratch+"/log", fmt.Sprint("writer", i)))
	}
	for _, p := range all {
		_ = p.in.Close()
	}
	for _, p := range all {
		p.done(t)
	}
	want := make(map[string]int) // the next expected line of each writer
	b, err := os.ReadFile(c.mounts[2].Scratch + "/log")
	check(t, err)
	for line := range strings.Lines(string(b)) {
		var who, rest string
		var i int
		if _, err := fmt.Sscanf(line, "%s %d %s", &who, &i, &rest); err != nil && i > 0 || len(rest) != 3*i || want[who] != i {
			t.Fatalf("line %q of %s, want its line %d", line, who, want[who])
		}
		want[who]++
	}
	for i := range 8 {
		if n := want[fmt.Sprint("writer", i)]; n != 100 {
			t.Errorf("%d lines of writer %d", n, i)
		}
	}
}

// mappings: one node at a time may map a file shared and writable. The mappings are not accessed, because this
// process serves them.
func mappings(t *testing.T, _ *camp, here, there string) {
	check(t, os.WriteFile(here+"/f", pattern(4096), 0o644))
	mapped := func(dir string, flag, prot, how int) error {
		f, err := os.OpenFile(dir+"/f", flag, 0)
		check(t, err)
		defer f.Close()
		m, err := unix.Mmap(int(f.Fd()), 0, 4096, prot, how)
		if err == nil {
			check(t, unix.Munmap(m))
		}
		return err
	}
	const both = unix.PROT_READ | unix.PROT_WRITE
	held, err := os.OpenFile(here+"/f", os.O_RDWR, 0)
	check(t, err)
	check(t, mapped(here, os.O_RDWR, both, unix.MAP_SHARED))
	wantErr(t, "a shared mapping there", mapped(there, os.O_RDWR, both, unix.MAP_SHARED), syscall.ENODEV)
	check(t, mapped(there, os.O_RDWR, both, unix.MAP_PRIVATE))
	check(t, mapped(there, os.O_RDONLY, unix.PROT_READ, unix.MAP_SHARED))
	f, err := os.OpenFile(there+"/f", os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	_, err = held.WriteAt([]byte("held"), 0)
	check(t, err)
	check(t, held.Sync())
	b := make([]byte, 4)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "held" {
		t.Errorf("a descriptor there reads %q, %v", b, err)
	}
	_, err = f.WriteAt([]byte("file"), 0)
	check(t, err)
	check(t, f.Sync())
	check(t, held.Close())
	testcluster.Eventually(t, "the right passes on", func() bool { return mapped(there, os.O_RDWR, both, unix.MAP_SHARED) == nil })
	wantFile(t, here+"/f", append([]byte("file"), pattern(4096)[4:]...))
}

// truncate: truncated data never reappears.
func truncate(t *testing.T, _ *camp, here, there string) {
	check(t, os.WriteFile(here+"/f", pattern(5<<20), 0o644))
	for _, size := range []int64{3<<20 + 1, 4097, 1} {
		check(t, os.Truncate(there+"/f", size))
		check(t, os.Truncate(there+"/f", 5<<20))
		want := append(pattern(int(size)), make([]byte, 5<<20-size)...)
		wantFile(t, here+"/f", want)
		wantFile(t, there+"/f", want)
	}
	f, err := os.OpenFile(here+"/f", os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	check(t, os.Truncate(there+"/f", 0)) // while it is open here
	_, err = f.WriteAt([]byte("tail"), 2<<20)
	check(t, err)
	check(t, f.Sync())
	wantFile(t, there+"/f", append(make([]byte, 2<<20), "tail"...))
	check(t, os.Truncate(there+"/f", 1<<40))
	if n, err := f.ReadAt(make([]byte, 100), 1<<39); n != 100 || err != nil {
		t.Errorf("ReadAt in a hole = %d, %v", n, err)
	}
}

// unlinkOpen: an unlinked file stays readable where it is open, on both nodes,
// and its space is freed afterwards.
func unlinkOpen(t *testing.T, c *camp, here, there string) {
	for what, remove := range map[string]func(path string) error{
		"unlink": os.Remove,
		"rename over it": func(path string) error {
			return errors.Join(os.WriteFile(path+".new", []byte("new"), 0o644), os.Rename(path+".new", path))
		},
	} {
		for _, by := range []string{here, there} {
			check(t, os.WriteFile(here+"/f", pattern(3<<20), 0o644))
			var open []*os.File
			for _, dir := range []string{here, there} {
				f, err := os.OpenFile(dir+"/f", os.O_RDWR, 0)
				check(t, err)
				open = append(open, f)
			}
			check(t, remove(by+"/f"))
			keeps(t, what, open)
			used := c.used(t)
			for _, f := range open {
				check(t, f.Close())
			}
			testcluster.Eventually(t, "its space comes back", func() bool { return c.used(t) <= used-3<<20 })
		}
	}
}

// keeps checks the operations on an unlinked file with two handles.
func keeps(t *testing.T, what string, open []*os.File) {
	t.Helper()
	for i, f := range open {
		if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, pattern(3<<20)) {
			t.Errorf("after %s handle %d reads %d bytes, %v", what, i, len(got), err)
		}
		if st := fstat(t, f); st.Nlink != 0 || st.Size != 3<<20 {
			t.Errorf("after %s handle %d has nlink %d, size %d", what, i, st.Nlink, st.Size)
		}
	}
	_, err := open[0].WriteAt([]byte("more"), 3<<20)
	check(t, err)
	check(t, open[0].Sync())
	if st := fstat(t, open[1]); st.Size != 3<<20+4 {
		t.Errorf("after %s and a write the other handle has size %d", what, st.Size)
	}
	check(t, open[1].Truncate(3<<20))
}

// used returns the bytes in use on all nodes.
func (c *camp) used(t *testing.T) int64 {
	t.Helper()
	var sum int64
	for _, n := range c.Nodes {
		s, err := n.Data().Space(t.Context())
		check(t, err)
		sum += s.Used
	}
	return sum
}

// fsync: synced data is on the nodes' disks, and visible there without a close.
func fsync(t *testing.T, c *camp, here, there string) {
	f, err := os.Create(here + "/f")
	check(t, err)
	defer f.Close()
	_, err = f.Write(pattern(3 << 20))
	check(t, err)
	check(t, f.Sync())
	wantFile(t, there+"/f", pattern(3<<20))
	if used := c.used(t); used < 3<<20 {
		t.Errorf("the nodes hold %d bytes", used)
	}
	d, err := os.Open(here)
	check(t, err)
	check(t, errors.Join(d.Sync(), d.Close()))
	if fd, err := unix.Open(here, unix.O_DIRECTORY, 0); err != nil || unix.Syncfs(fd) != nil || unix.Close(fd) != nil {
		t.Errorf("syncfs: %v", err)
	}
}

// statfs: written bytes reduce the free space.
func statfs(t *testing.T, c *camp, here, there string) {
	free := func(dir string) (st unix.Statfs_t) {
		check(t, unix.Statfs(dir, &st))
		return st
	}
	if st := free(here); int64(st.Blocks)*st.Bsize != 4*4<<30 {
		t.Errorf("%d bytes in all, want four nodes of 4 GiB", int64(st.Blocks)*st.Bsize)
	}
	before := free(there)
	check(t, os.WriteFile(here+"/f", pattern(8<<20), 0o644))
	testcluster.Eventually(t, "it is missing there", func() bool { // earlier removed data may be freed meanwhile
		st, used := free(there), c.used(t)
		return used >= 8<<20 && int64(st.Blocks-st.Bfree)*st.Bsize >= used
	})
	check(t, os.Remove(there+"/f"))
	testcluster.Eventually(t, "it is back here", func() bool { return free(here).Bfree >= before.Bfree })
}

// oneWins: of many concurrent creates of one name, one succeeds.
func oneWins(t *testing.T, _ *camp, here, there string) {
	check(t, os.WriteFile(here+"/source", nil, 0o644))
	for what, make := range map[string]func(dir, path string) error{
		"O_EXCL": func(_, path string) error {
			f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err == nil {
				err = f.Close()
			}
			return err
		},
		"mkdir":   func(_, path string) error { return os.Mkdir(path, 0o700) },
		"symlink": func(_, path string) error { return os.Symlink("x", path) },
		"link":    func(dir, path string) error { return os.Link(dir+"/source", path) },
	} {
		for round := range 10 {
			var won atomic.Int32
			var wg sync.WaitGroup
			for i := range 8 {
				dir := []string{here, there}[i%2]
				wg.Go(func() {
					err := make(dir, fmt.Sprintf("%s/%s%d", dir, what, round))
					if err == nil {
						won.Add(1)
					} else if !errors.Is(err, syscall.EEXIST) {
						t.Errorf("%s = %v", what, err)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Errorf("%s of one name succeeded %d times", what, won.Load())
			}
		}
	}
	if st := stat(t, there+"/source"); st.Nlink != 11 {
		t.Errorf("the source of 10 links has nlink %d", st.Nlink)
	}
}

// signals: a process that waits for a node that does not answer can be killed and interrupted.
func signals(t *testing.T, c *camp, here, there string) {
	check(t, os.WriteFile(here+"/f", pattern(8<<20), 0o644))
	c.Cut(3)
	defer func() {
		c.Mend(3)
		testcluster.Eventually(t, "node 3 answers again", func() bool {
			return os.WriteFile(here+"/g", pattern(8<<20), 0o644) == nil && os.WriteFile(there+"/h", pattern(8<<20), 0o644) == nil
		})
	}()
	p := exec.Command("sh", "-c", `trap 'exit 7' INT; while :; do cat "$1" >/dev/null 2>&1; cat "$1" >/dev/null 2>&1; done`, "sh", here+"/f")
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	check(t, p.Start())
	check(t, syscall.Kill(-p.Process.Pid, syscall.SIGINT))
	testcluster.Eventually(t, "it ends", func() bool {
		_ = syscall.Kill(-p.Process.Pid, syscall.SIGINT)
		var st syscall.WaitStatus
		pid, err := syscall.Wait4(p.Process.Pid, &st, syscall.WNOHANG, nil)
		return err == nil && pid == p.Process.Pid
	})
}
