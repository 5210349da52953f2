package testcluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// locker is a process that locks a file of a mount on command.
type locker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

const lockHelper = "BIVOUAC_TEST_LOCK" // the file that the helper opens

// TestLockHelper is the locker. A command is "lock r|w|u FROM LEN [wait]", "test FROM LEN",
// "flock", "open", "close" or "fork"; the answer is one line.
func TestLockHelper(t *testing.T) {
	path := os.Getenv(lockHelper)
	if path == "" {
		t.Skip("it helps another test")
	}
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	second := -1
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		f := strings.Fields(in.Text())
		err := error(nil)
		switch f[0] {
		case "lock", "test":
			fl := unix.Flock_t{Type: map[string]int16{"r": unix.F_RDLCK, "w": unix.F_WRLCK, "u": unix.F_UNLCK}[f[1]]}
			if _, err = fmt.Sscan(f[2], &fl.Start); err == nil {
				_, err = fmt.Sscan(f[3], &fl.Len)
			}
			cmd := unix.F_SETLK
			if f[0] == "test" {
				cmd = unix.F_GETLK
			} else if len(f) > 4 {
				cmd = unix.F_SETLKW
			}
			if err == nil {
				err = unix.FcntlFlock(uintptr(fd), cmd, &fl)
			}
			if f[0] == "test" && err == nil {
				err = fmt.Errorf("type %d from %d of %d by %d", fl.Type, fl.Start, fl.Len, fl.Pid)
			}
		case "flock":
			err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		case "open":
			second, err = unix.Open(path, unix.O_RDONLY, 0)
		case "close":
			err = unix.Close(second)
		}
		if err == nil {
			fmt.Println("ok")
		} else {
			fmt.Println(err)
		}
	}
}

func startLocker(t *testing.T, path string) *locker {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := &locker{cmd: exec.Command(exe, "-test.run=^TestLockHelper$")}
	l.cmd.Env = append(os.Environ(), lockHelper+"="+path)
	l.cmd.Stderr = os.Stderr
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.out = bufio.NewReader(out)
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.kill)
	return l
}

func (l *locker) kill() {
	_ = l.cmd.Process.Kill()
	_ = l.cmd.Wait() // it was killed
}

// say sends a command and returns the answer.
func (l *locker) say(t *testing.T, command string) string {
	t.Helper()
	if _, err := fmt.Fprintln(l.in, command); err != nil {
		t.Fatal(err)
	}
	answer, err := l.out.ReadString('\n')
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return strings.TrimSpace(answer)
}

func (l *locker) want(t *testing.T, command, want string) {
	t.Helper()
	if got := l.say(t, command); got != want {
		t.Errorf("%s: %q, want %q", command, got, want)
	}
}

const busy = "resource temporarily unavailable"

// lockMounts makes a file and returns its path on the mounts of two nodes, neither of which is its home.
func lockMounts(t *testing.T, c *Cluster, name string) (here, there string) {
	t.Helper()
	ms := c.Mount(t, 1, 2)
	a := put(t, c.Nodes[1], metadata.RootIno, name, []byte("x"), metadata.Layout{})
	if a.Ino.Home() != 0 {
		t.Fatalf("the home of %v", a.Ino)
	}
	return filepath.Join(ms[0].Scratch, name), filepath.Join(ms[1].Scratch, name)
}

// TestLocksOfProcesses: POSIX lock semantics between processes of one machine hold between processes of two nodes.
func TestLocksOfProcesses(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 3})
	here, there := lockMounts(t, c, "f")
	a, a2, b := startLocker(t, here), startLocker(t, here), startLocker(t, there)
	a.want(t, "lock w 1073741824 510", "ok") // SQLite's lock bytes
	b.want(t, "lock r 1073741825 1", busy)
	a2.want(t, "lock r 1073741825 1", busy)
	b.want(t, "lock w 1073741824 1 ", busy)
	b.want(t, "test w 1073741824 1", fmt.Sprintf("type %d from 1073741824 of 510 by %d", unix.F_WRLCK, os.Getpid()))
	a2.want(t, "test w 1073741824 1", fmt.Sprintf("type %d from 1073741824 of 510 by %d", unix.F_WRLCK, a.cmd.Process.Pid))
	a.want(t, "test w 1073741824 1", fmt.Sprintf("type %d from 1073741824 of 1 by 0", unix.F_UNLCK))
	b.want(t, "lock w 0 1", "ok")
	a.want(t, "lock u 1073741830 1", "ok")
	b.want(t, "lock w 1073741830 1", "ok")
	// Closing any descriptor of the file releases the process's locks on it.
	a.want(t, "open", "ok")
	a.want(t, "close", "ok")
	b.want(t, "lock w 1073741824 510", "ok")
	// flock sees only flock.
	a.want(t, "flock", "ok")
	b.want(t, "flock", busy)
	a.kill()
	Eventually(t, "a process that was killed has no flock", func() bool { return b.say(t, "flock") == "ok" })
	b.kill()
	Eventually(t, "a process that was killed has no locks", func() bool { return a2.say(t, "lock w 0 0") == "ok" })
}

// TestWaitingProcesses: a process that waits for a lock gets it, or is interrupted by a signal, or is killed.
func TestWaitingProcesses(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 3})
	here, there := lockMounts(t, c, "f")
	a, b := startLocker(t, here), startLocker(t, there)
	a.want(t, "lock w 0 10", "ok")
	if _, err := fmt.Fprintln(b.in, "lock w 5 1 wait"); err != nil {
		t.Fatal(err)
	}
	waiters(t, c.Nodes[0], 1)
	a.want(t, "lock u 0 10", "ok")
	if got, err := b.out.ReadString('\n'); got != "ok\n" {
		t.Errorf("who has waited: %q, %v", got, err)
	}
	if _, err := fmt.Fprintln(a.in, "lock r 0 10 wait"); err != nil {
		t.Fatal(err)
	}
	waiters(t, c.Nodes[0], 1)
	a.kill()
	waiters(t, c.Nodes[0], 0)
	b.want(t, "flock", "ok")
	for what, args := range map[string][]string{
		"SIGALRM": {"flock", "-w", "1", here, "true"},
		"SIGINT":  {"timeout", "-s", "INT", "1", "flock", here, "true"},
		"SIGKILL": {"timeout", "-s", "KILL", "1", "flock", here, "true"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		err := exec.CommandContext(ctx, args[0], args[1:]...).Run()
		if cancel(); err == nil || ctx.Err() == context.DeadlineExceeded {
			t.Errorf("%s: %v", what, err)
		}
		waiters(t, c.Nodes[0], 0)
	}
	waiting := exec.Command("flock", here, "echo", "mine")
	got := make(chan string, 1)
	go func() {
		out, err := waiting.CombinedOutput()
		got <- fmt.Sprint(strings.TrimSpace(string(out)), " ", err)
	}()
	waiters(t, c.Nodes[0], 1)
	b.kill()
	select {
	case s := <-got:
		if s != "mine <nil>" {
			t.Errorf("who has waited: %s", s)
		}
	case <-time.After(Patience):
		t.Error("who waits for a process that was killed waits for ever")
	}
}

// sqliteScript adds n to a counter, in one transaction per step.
const sqliteScript = `
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=120, isolation_level=None)
for i in range(int(sys.argv[2])):
    db.execute("BEGIN IMMEDIATE")
    (v,) = db.execute("SELECT v FROM counter").fetchone()
    db.execute("UPDATE counter SET v = ?", (v + 1,))
    db.execute("INSERT INTO log VALUES (?, ?)", (sys.argv[3], v))
    db.execute("COMMIT")
`

// TestSQLite: a database that processes of two nodes write concurrently loses nothing.
func TestSQLite(t *testing.T) {
	t.Parallel()
	if err := exec.Command("python3", "-c", "import sqlite3").Run(); err != nil {
		t.Skip("python3 with sqlite3 is not installed")
	}
	c := Start(t, Config{Nodes: 3})
	ms := c.Mount(t, 1, 2)
	python := func(args ...string) ([]byte, error) {
		return exec.Command("python3", append([]string{"-c"}, args...)...).CombinedOutput()
	}
	path := func(i int) string { return filepath.Join(ms[i].Scratch, "db") }
	out, err := python(`
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("CREATE TABLE counter (v INTEGER)")
db.execute("CREATE TABLE log (who TEXT, v INTEGER PRIMARY KEY)")
db.execute("INSERT INTO counter VALUES (0)")
db.commit()`, path(0))
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const writers, per = 4, 25
	done := make(chan error, writers)
	for w := range writers {
		go func() {
			out, err := python(sqliteScript, path(w%2), fmt.Sprint(per), fmt.Sprint(w))
			if err != nil {
				err = fmt.Errorf("writer %d: %w: %s", w, err, out)
			}
			done <- err
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for i := range ms {
		out, err := python(`
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("SELECT v FROM counter").fetchone()[0], db.execute("SELECT count(*) FROM log").fetchone()[0], db.execute("PRAGMA integrity_check").fetchone()[0])`, path(i))
		if want := fmt.Sprintln(writers*per, writers*per, "ok"); err != nil || string(out) != want {
			t.Errorf("node %d: %q, %v, want %q", i, out, err, want)
		}
	}
}

// TestKilledInWrite: a process that is killed during a write leaves whole requests, no open file, and blocks nothing.
func TestKilledInWrite(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 3})
	ms := c.Mount(t, 1)
	path := filepath.Join(ms[0].Scratch, "f")
	for _, mode := range []string{"", "oflag=append"} {
		cmd := exec.Command("dd", strings.Fields("if=/dev/zero of="+path+" bs=256k conv=notrunc "+mode)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		Eventually(t, "something is written", func() bool {
			st, err := os.Stat(path)
			return err == nil && st.Size() > 4<<20
		})
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it was killed
		Eventually(t, "nothing is open", func() bool {
			return c.Nodes[1].Client.Stats().Open == 0 && c.Nodes[0].Home().OpenFiles().Open == 0
		})
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
		c.spaceBack(t)
	}
}
