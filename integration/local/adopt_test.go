package local

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/job"
	keeper "github.com/bivouacfs/bivouac/deploy/pitch"
	"github.com/bivouacfs/bivouac/integration/netcluster"
)

// keptJob is a job of one node with a keeper, started as by Slurm's prolog.
type keptJob struct {
	t        *testing.T
	bin, dir string
	spec     keeper.Spec
}

func newKeptJob(t *testing.T, spec keeper.Spec) *keptJob {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount and to change users")
	}
	dir, err := os.MkdirTemp("", "kept") // short, as socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	spec.V = keeper.SpecVersion
	k := &keptJob{t: t, bin: netcluster.Binary(t), dir: dir, spec: spec}
	t.Cleanup(func() {
		if log, err := os.ReadFile(filepath.Join(dir, "log", keptID+".log")); t.Failed() && err == nil {
			t.Logf("log:\n%s", log)
		}
		if err := errors.Join(k.script("epilog"), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	site := fmt.Sprintf("store: [%[1]s/store]\nrun: %[1]s/run\nmount: %[1]s/mnt\nlog: %[1]s/log\nport: %[2]d\nports: 64\n", dir, 21000+64*((2*int64(os.Getpid())+keptJobs.Add(1))%600))
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(k.path("store"), 0o755), os.WriteFile(k.path("bivouac.yaml"), []byte(site), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := k.script("prolog"); err != nil {
		t.Fatal(err)
	}
	return k
}

// keptJobs counts the jobs of this process: each has its own ports.
var keptJobs atomic.Int64

// keptID is the job id.
const keptID = "4712"

func (k *keptJob) path(name string) string { return filepath.Join(k.dir, name) }

// scratch returns a path in scratch/.
func (k *keptJob) scratch(name string) string {
	return filepath.Join(k.dir, "mnt", keptID, "scratch", name)
}

// script runs the program as Slurm does before and after a job.
func (k *keptJob) script(name string) error {
	spec, err := k.spec.Encode()
	if err != nil {
		return err
	}
	cmd := exec.Command(k.bin, name, "--config", k.path("bivouac.yaml"))
	cmd.Env = append(os.Environ(), "SPANK_BIVOUAC_SPEC="+spec, "SLURM_JOB_ID="+keptID, "SLURM_JOB_UID=65534", "SLURM_JOB_GID=65534",
		"SLURM_JOB_NODELIST=node1", "SLURMD_NODENAME=node1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// daemon returns the process id of the daemon; 0 if none runs.
func (k *keptJob) daemon() (pid int) {
	b, _ := os.ReadFile(filepath.Join(k.dir, "run", keptID, "daemon.pid")) // absent between two daemons
	_, _ = fmt.Sscan(string(b), &pid)
	return pid
}

// kill kills the daemon and waits for its successor.
func (k *keptJob) kill() {
	k.t.Helper()
	was := k.daemon()
	if err := unix.Kill(was, unix.SIGKILL); err != nil {
		k.t.Fatal(err)
	}
	for late := time.Now().Add(patience); k.daemon() == 0 || k.daemon() == was; {
		if time.Now().After(late) {
			k.t.Fatal("there is no other daemon")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// open opens a file of scratch/ with this content.
func (k *keptJob) open(name string, flags int, content string) *os.File {
	k.t.Helper()
	if err := os.WriteFile(k.scratch(name), []byte(content), 0o666); err != nil {
		k.t.Fatal(err)
	}
	f, err := os.OpenFile(k.scratch(name), flags, 0)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = f.Close() })
	return f
}

func (k *keptJob) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

// wantContent checks the content of a file.
func (k *keptJob) wantContent(name, want string) {
	k.t.Helper()
	got, err := os.ReadFile(k.scratch(name))
	if err != nil || string(got) != want {
		k.t.Errorf("%s has %.40q, %v, want %.40q", name, got, err, want)
	}
}

// TestOpenFilesSurvive: a node's daemon is killed twice while processes have files open, mapped and locked, work in
// directories, and have calls in flight. All continue except the process with the lock.
func TestOpenFilesSurvive(t *testing.T) {
	t.Parallel()
	if !resends() {
		t.Skip("needs Linux 6.9")
	}
	k := newKeptJob(t, keeper.Spec{})
	text := strings.Repeat("0123456789abcdef", 1<<14)
	k.must(os.MkdirAll(k.scratch("dir/sub"), 0o777))
	for i := range 10 {
		k.must(os.WriteFile(k.scratch(fmt.Sprint("dir/", i)), nil, 0o666))
	}
	reader, writer := k.open("read", os.O_RDONLY, text), k.open("write", os.O_RDWR, text)
	appender, lock := k.open("append", os.O_WRONLY|os.O_APPEND, "first\n"), k.open("lock", os.O_RDWR, "x")
	mapped, late := k.open("mapped", os.O_RDWR, text), k.open("late", os.O_WRONLY, "")
	idle := k.open("idle", os.O_RDONLY, text)
	pages, err := unix.Mmap(int(mapped.Fd()), 0, len(text), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	k.must(err)
	defer unix.Munmap(pages)
	k.must(unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	dir, err := os.Open(k.scratch("dir"))
	k.must(err)
	defer dir.Close()
	names, err := dir.Readdirnames(3)
	k.must(err)
	shell := exec.Command("sh", "-c", "while read go; do ls sub/.. >/dev/null && cat ../read | wc -c && echo $go >>said; echo done; done")
	shell.Dir = k.scratch("dir")
	in, err := shell.StdinPipe()
	k.must(err)
	said, err := shell.StdoutPipe()
	k.must(err)
	answers := bufio.NewReader(said)
	k.must(shell.Start())
	head := make([]byte, 100)
	_, err = io.ReadFull(reader, head)
	k.must(err)
	calls := k.calls()

	for round := range 2 {
		_, err = writer.WriteAt([]byte("before"), int64(100*round))
		k.must(errors.Join(err, writer.Sync()))
		_, err = fmt.Fprintln(appender, "before", round)
		k.must(errors.Join(err, appender.Sync()))
		pages[100*round] = 'B'
		lost := []byte(strings.Repeat("y", 1000))
		_, err = late.WriteAt(lost, int64(1000*round))
		k.must(err)
		k.kill()

		_, err = writer.WriteAt([]byte("after!"), int64(100*round+50))
		k.must(errors.Join(err, writer.Sync()))
		_, err = fmt.Fprintln(appender, "after", round)
		k.must(errors.Join(err, appender.Sync()))
		pages[100*round+1] = 'A'
		k.must(unix.Msync(pages, unix.MS_SYNC))
		fmt.Fprintln(in, "round", round)
		for _, want := range []string{"262144\n", "done\n"} {
			if got, err := answers.ReadString('\n'); got != want {
				t.Errorf("round %d: the shell in a directory of the mount said %q, %v, want %q", round, got, err, want)
			}
		}
		if err := late.Sync(); err == nil { // then nothing is lost
			got, err := os.ReadFile(k.scratch("late"))
			if from := 1000 * round; err != nil || len(got) < from+1000 || !bytes.Equal(got[from:from+1000], lost) {
				t.Errorf("round %d: an acknowledged write is lost, and fsync reported nothing: %d bytes, %v", round, len(got), err)
			}
		} else if !errors.Is(err, syscall.EIO) {
			t.Errorf("round %d: fsync after a lost write = %v, want EIO", round, err)
		}
		if err := late.Sync(); err != nil {
			t.Errorf("round %d: the second fsync after a lost write = %v", round, err)
		}
	}
	calls()
	rest, err := io.ReadAll(reader)
	if got := string(head) + string(rest); err != nil || got != text {
		t.Errorf("the reader has read %d bytes, %v, want %d", len(got), err, len(text))
	}
	if got, err := io.ReadAll(idle); err != nil || string(got) != text {
		t.Errorf("the file that was not used meanwhile has %d bytes, %v, want %d", len(got), err, len(text))
	}
	more, err := dir.Readdirnames(-1)
	if len(names)+len(more) != 12 || err != nil {
		t.Errorf("the open directory has %v and %v, %v", names, more, err)
	}
	k.must(errors.Join(in.Close(), shell.Wait()))
	if _, err := lock.ReadAt(head[:1], 0); !errors.Is(err, syscall.EIO) {
		t.Errorf("read by a descriptor that has lost its lock = %v, want EIO", err)
	}
	k.wantContent("lock", "x")
	k.wantContent("dir/said", "round 0\nround 1\n")
	k.wantContent("append", "first\nbefore 0\nafter 0\nbefore 1\nafter 1\n")
	want := []byte(text)
	for round := range 2 {
		copy(want[100*round:], "before")
		copy(want[100*round+50:], "after!")
	}
	k.wantContent("write", string(want))
	want = []byte(text)
	want[0], want[1], want[100], want[101] = 'B', 'A', 'B', 'A'
	k.wantContent("mapped", string(want))
}

// TestKilledInLargeWrites: a daemon is killed during two large write(2). The kernel resends the part in flight,
// returns the length of the parts before it and drops the error of that part: each write is complete, or a later call
// returns an error.
func TestKilledInLargeWrites(t *testing.T) {
	t.Parallel()
	if !resends() {
		t.Skip("needs Linux 6.9")
	}
	k := newKeptJob(t, keeper.Spec{})
	p := make([]byte, 64<<20)
	for i := range p {
		p[i] = byte(i*7+i>>8*13+i>>16*31) | 1
	}
	var wg sync.WaitGroup
	for name, flags := range map[string]int{"buffered": 0, "appended": os.O_APPEND | os.O_SYNC} {
		f, err := os.OpenFile(k.scratch(name), os.O_CREATE|os.O_WRONLY|flags, 0o666)
		k.must(err)
		wg.Go(func() {
			n, err := f.Write(p) // it continues after a short write, as all writers do
			if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
				t.Logf("%s: %d bytes written, %v", name, n, err)
				return
			}
			if got, err := os.ReadFile(k.scratch(name)); err != nil || !bytes.Equal(got, p) {
				t.Errorf("%s: write, fsync and close returned success, and the file has %d bytes, %v, want %d, or other ones", name, len(got), err, len(p))
			}
		})
	}
	k.written(6)
	k.kill()
	wg.Wait()
}

// written waits until the daemon has served n writes.
func (k *keptJob) written(n int) {
	k.t.Helper()
	for late := time.Now().Add(patience); ; {
		var stats struct {
			Mount struct{ Calls map[string]int }
		}
		b, err := os.ReadFile(filepath.Join(k.dir, "mnt", keptID, ".bivouac/stats"))
		k.must(errors.Join(err, json.Unmarshal(b, &stats)))
		if stats.Mount.Calls["write"] >= n {
			return
		}
		if time.Now().After(late) {
			k.t.Fatalf("the daemon has had no %d writes: %s", n, b)
		}
	}
}

// TestOpenDatasetSurvives: open files of a dataset survive, too, also those that the kernel reads without the daemon;
// they can still be opened meanwhile.
func TestOpenDatasetSurvives(t *testing.T) {
	t.Parallel()
	if !resends() {
		t.Skip("needs Linux 6.9")
	}
	src, err := os.MkdirTemp("", "src")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(src) })
	text := strings.Repeat("0123456789abcdef", 1<<16)
	for _, name := range []string{"a", "b"} {
		if err := errors.Join(os.Chmod(src, 0o755), os.WriteFile(filepath.Join(src, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	k := newKeptJob(t, keeper.Spec{StageIn: []job.Dataset{{Source: src, Name: "set"}}})
	mnt := filepath.Join(k.dir, "mnt", keptID)
	open := func(name string) *os.File {
		f, err := os.Open(filepath.Join(mnt, "data/set", name))
		k.must(err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	for late := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) { // until it is complete on this node
		if _, err := os.ReadFile(filepath.Join(mnt, "data/set/b")); err == nil {
			k.must(open("a").Close())
		}
		stats, err := os.ReadFile(filepath.Join(mnt, ".bivouac/stats"))
		if k.must(err); regexp.MustCompile(`"passthrough": [1-9]`).Match(stats) {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("no passthrough: %s", stats)
		}
	}
	a, b := open("a"), open("b")
	dir, err := os.Open(filepath.Join(mnt, "data/set"))
	k.must(err)
	defer dir.Close()
	half := make([]byte, len(text)/2)
	_, err = io.ReadFull(a, half)
	k.must(err)
	for range 2 {
		k.kill()
		for _, name := range []string{"a", "b"} {
			if got, err := io.ReadAll(open(name)); err != nil || string(got) != text {
				t.Errorf("%s, opened now, has %d bytes, %v, want %d", name, len(got), err, len(text))
			}
			var st unix.Stat_t
			if err := unix.Fstatat(int(dir.Fd()), name, &st, 0); err != nil || st.Size != int64(len(text)) {
				t.Errorf("%s in the open directory has %d bytes, %v", name, st.Size, err)
			}
		}
	}
	rest, err := io.ReadAll(a)
	if err != nil || string(half)+string(rest) != text {
		t.Errorf("the file that was half read has %d bytes more, %v", len(rest), err)
	}
	if got, err := io.ReadAll(b); err != nil || string(got) != text {
		t.Errorf("the file that was open has %d bytes, %v, want %d", len(got), err, len(text))
	}
}

// calls makes calls on the mount until the returned function is called, which fails if one of them failed.
func (k *keptJob) calls() (stop func()) {
	var wg sync.WaitGroup
	end, failed := make(chan struct{}), make(chan error, 8)
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-end:
					return
				default:
				}
				name := k.scratch(fmt.Sprintf("made.%d.%d", i, n))
				err := os.WriteFile(name, []byte(name), 0o666)
				if err == nil {
					var got []byte
					if got, err = os.ReadFile(name); err == nil && string(got) != name {
						err = fmt.Errorf("%s has %q", name, got)
					}
				}
				if err == nil || errors.Is(err, syscall.EIO) { // in flight and not repeatable, or lost
					_ = os.Remove(name)
					continue
				}
				failed <- err
				return
			}
		})
	}
	return func() {
		k.t.Helper()
		close(end)
		wg.Wait()
		close(failed)
		for err := range failed {
			k.t.Errorf("a call while the daemon was killed: %v", err)
		}
	}
}

// resends reports whether the kernel can resend the requests of a dead daemon.
func resends() bool {
	var u unix.Utsname
	var major, minor int
	if err := unix.Uname(&u); err != nil {
		return false
	}
	_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 9
}
