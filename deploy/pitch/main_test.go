package pitch

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/integration/leaktest"
)

// TestMain lets the test binary act as the real keeper, as a fake daemon that speaks on the heartbeat connection and
// answers for the root of a mount, and as a helper that mounts nothing.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "cover" {
		os.Exit(fakeHelper())
	}
	if len(os.Args) == 2 && os.Args[1] == "filldir" {
		os.Exit(fillDir())
	}
	if len(os.Args) == 2 && os.Args[1] == "orphans" {
		os.Exit(leaveOrphans())
	}
	if len(os.Args) == 2 && os.Args[1] == "exchange" {
		os.Exit(exchange())
	}
	if len(os.Args) == 4 {
		switch os.Args[1] {
		case "keeper":
			if err := Keeper(context.Background(), KeeperConfig{Record: os.Args[3], Key: os.Stdin}); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		case "daemon":
			os.Exit(fakeDaemon(os.Args[3]))
		}
	}
	leaktest.Main(m)
}

// The behaviours of a fake daemon; a test selects one by the seed of its job.
const (
	wellBehaved  = "1"
	refuses      = "2" // says why it cannot start
	diesAtStart  = "3"
	hangs        = "4" // ready, then silent, with the mount unanswered
	complains    = "5" // reports trouble when it leaves
	neverLeaves  = "6"
	diesAlways   = "7" // soon after it becomes ready
	neverReady   = "8"
	hangsOnce    = "9"
	leavesItself = "10"
	getsAway     = "11" // has started other processes, which would outlive it
	handsOver    = "12" // leaves its connection to the next one
	neverAdopts  = "13" // does so, and the next one cannot take it over
	diesLeaving  = "14" // the first daemon; the next one leaves normally
)

// sighting is what a fake daemon observes about itself.
type sighting struct {
	UID, GID, Umask int
	Groups          []int
	Files           uint64
	Core            uint64
	Env             []string
	KeyHash         string
	Session         bool
	Restart         int
	Starts          int
}

func fakeDaemon(path string) int {
	job, err := job.Read(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	heartbeat := daemon.NewHeartbeat(os.NewFile(daemon.HeartbeatFD, "heartbeat"))
	var start daemon.Start
	if err := heartbeat.Receive(&start); err != nil {
		return 2
	}
	how, n := fmt.Sprint(job.Seed), countStart(job)
	see(job, start.Key, n)
	switch {
	case how == refuses:
		_ = heartbeat.Send(daemon.Note{Failed: "host node9 did not\nanswer"})
		return 1
	case how == diesAtStart:
		return 3
	case how == neverReady:
		_ = heartbeat.Receive(&start)
		return 0
	}
	keeps := how == handsOver || how == neverAdopts
	if how == neverAdopts && start.Adopt {
		_ = heartbeat.Send(daemon.Note{Failed: "no settings"})
		return 1
	}
	signal.Ignore(syscall.SIGTERM)
	hung := how == hangs || how == hangsOnce && n == 1
	if !hung {
		go serveRoot(job)
	}
	if how == getsAway {
		getAway(job)
	}
	_ = heartbeat.Send(daemon.Note{Ready: true, Kept: keeps})
	if how == diesAlways {
		return 4
	}
	if how == diesLeaving && n > 1 {
		how = complains
	}
	return beADaemon(heartbeat, how, hung)
}

// getAway starts two processes in their own sessions, one of them without a parent, which have the mount and write down
// their identities.
func getAway(job *job.File) {
	const first = `echo $$ >$0/away1; setsid sh -c 'echo $$ >$0/away2; sleep 1000' $0 & wait`
	cmd := exec.Command("sh", "-c", "setsid sh -c '"+strings.ReplaceAll(first, "'", `'\''`)+"' "+job.Dirs.Run+" &")
	cmd.ExtraFiles = []*os.File{os.NewFile(daemon.FuseFD, "fuse")}
	if err := cmd.Run(); err != nil {
		panic(err)
	}
	for _, name := range []string{"away1", "away2"} {
		for {
			if b, err := os.ReadFile(job.Dirs.Run + "/" + name); err == nil && strings.HasSuffix(string(b), "\n") {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func beADaemon(heartbeat *daemon.Heartbeat, how string, hung bool) int {
	orders := make(chan daemon.Order)
	go func() {
		defer close(orders)
		for {
			var o daemon.Order
			if heartbeat.Receive(&o) != nil {
				return
			}
			orders <- o
		}
	}()
	t := time.NewTicker(50 * time.Millisecond)
	for {
		select {
		case <-t.C:
			if !hung {
				_ = heartbeat.Send(daemon.Note{Alive: true})
			}
			if how == leavesItself {
				_ = heartbeat.Send(daemon.Note{Left: true})
			}
		case o, ok := <-orders:
			switch {
			case !ok:
				return 0
			case how == neverLeaves || hung:
			case o.Leave && how == diesLeaving:
				return 5
			case o.Leave && how == complains:
				_ = heartbeat.Send(daemon.Note{Left: true, Trouble: "3 files were not\ncopied"})
			case o.Leave:
				_ = heartbeat.Send(daemon.Note{Left: true})
			}
		}
	}
}

func countStart(job *job.File) int {
	path := job.Dirs.Run + "/starts"
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	_, _ = f.WriteString("x")
	b, _ := os.ReadFile(path)
	return len(b)
}

func see(job *job.File, key string, starts int) {
	s := sighting{UID: os.Getuid(), GID: os.Getgid(), Umask: syscall.Umask(0), Env: os.Environ(), Restart: job.Restart, Starts: starts}
	s.Groups, _ = os.Getgroups()
	var lim syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim)
	s.Files = lim.Cur
	_ = syscall.Getrlimit(syscall.RLIMIT_CORE, &lim)
	s.Core = lim.Max
	sid, _ := unix.Getsid(0)
	s.Session = sid == os.Getpid()
	s.KeyHash = fmt.Sprintf("%x", sha256.Sum256([]byte(key)))
	b, _ := json.Marshal(s)
	if err := os.WriteFile(job.Dirs.Run+"/seen", b, 0o600); err != nil {
		panic(err)
	}
	for _, d := range job.Dirs.Store { // files that a user can leave there
		_ = os.WriteFile(d+"/object", []byte("data"), 0o600)
		_ = os.Symlink("/etc", d+"/link")
	}
}

// serveRoot answers INIT, and GETATTR of the root; all other requests get ENOSYS.
func serveRoot(job *job.File) {
	in := make([]byte, 2<<20)
	for {
		n, err := unix.Read(daemon.FuseFD, in)
		if err == unix.EINTR || err == unix.ENOENT {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		op := binary.LittleEndian.Uint32(in[4:])
		out := make([]byte, 16, 128)
		copy(out[8:], in[8:16])
		switch op {
		case 26: // INIT
			b := make([]byte, 64)
			for i, v := range []uint32{7, 31, 1 << 20, 0} {
				binary.LittleEndian.PutUint32(b[4*i:], v)
			}
			binary.LittleEndian.PutUint32(b[20:], 1<<20)
			out = append(out, b...)
		case 3: // GETATTR
			if _, err := os.Stat(job.Dirs.Run + "/mute"); err == nil {
				_ = os.Remove(job.Dirs.Run + "/mute")
				_ = os.WriteFile(job.Dirs.Run+"/asked", nil, 0o600)
				continue // the next daemon answers
			}
			b := make([]byte, 104)
			binary.LittleEndian.PutUint64(b[16:], 1)
			for i, v := range []uint32{unix.S_IFDIR | 0o700, 2, job.UID, job.GID} {
				binary.LittleEndian.PutUint32(b[16+60+4*i:], v)
			}
			out = append(out, b...)
		default:
			e := -int32(unix.ENOSYS)
			binary.LittleEndian.PutUint32(out[4:], uint32(e))
		}
		binary.LittleEndian.PutUint32(out, uint32(len(out)))
		_, _ = unix.Write(daemon.FuseFD, out)
	}
}

// needRoot skips a test that needs root.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount and to change users")
	}
}

func needFuse(t *testing.T) {
	t.Helper()
	needRoot(t)
	if _, err := os.Stat(fuseDevice); err != nil {
		t.Skip("needs FUSE: ", err)
	}
	if _, err := exec.LookPath(idProgram); err != nil {
		t.Skip("needs ", idProgram)
	}
}

// soon waits for a condition that another process brings about.
func soon(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := poll(ctx, done); err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

func contains(t *testing.T, what, text, want string) {
	t.Helper()
	if !strings.Contains(text, want) {
		t.Errorf("%s is %q, want it to contain %q", what, text, want)
	}
}
