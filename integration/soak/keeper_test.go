package soak

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
)

// A keeper is a process of its own, this program with the job file of its node in
// its environment: who forks while files of the mounts are open waits for them.
const (
	keeperOf  = "BIVOUAC_TEST_KEEPER"
	programOf = "BIVOUAC_TEST_PROGRAM"
	awayOf    = "BIVOUAC_TEST_AWAY"
	wrapOf    = "BIVOUAC_TEST_WRAP" // words before the daemon's command
)

func TestMain(m *testing.M) {
	if file := os.Getenv(keeperOf); file != "" {
		if err := keeper(file, os.Getenv(programOf)); err != nil {
			fmt.Println("keeper:", err)
			os.Exit(1)
		}
		return
	}
	if nodes := os.Getenv(networkOf); nodes != "" {
		if err := serveNetwork(nodes); err != nil {
			fmt.Fprintln(os.Stderr, "network:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// keeper starts the daemon of a node again and again, until standard input is
// closed. It says what it sees in lines.
func keeper(file, program string) error {
	runtime.LockOSThread()                         // whose end is the daemon's
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM) // standard input is closed then
	j, err := job.Read(file)
	if err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	key, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = in.ReadByte() // nothing comes any more but the end
		cancel()
	}()
	for ctx.Err() == nil {
		if err := life(ctx, j, file, program, strings.TrimSpace(key)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest()):
		}
	}
	return nil
}

// rest is how long a node is without a daemon. With -away it is now and then long
// enough to be given up by the others.
func rest() time.Duration {
	if n, _ := strconv.Atoi(os.Getenv(awayOf)); n > 0 && rand.IntN(n) == 0 {
		return 18*time.Second + rand.N(6*time.Second)
	}
	return rand.N(700 * time.Millisecond)
}

// grace is how long a daemon may take to end that is asked to.
const grace = 20 * time.Second

// life is that of one daemon.
func life(ctx context.Context, j *job.File, file, program, key string) error {
	cmd, heartbeat, err := spawn(file, program)
	if err != nil {
		return err
	}
	fmt.Println("started", cmd.Process.Pid)
	defer context.AfterFunc(ctx, func() {
		_ = heartbeat.Close() // which ends it
		time.AfterFunc(grace, func() { _ = cmd.Process.Kill() })
	})()
	err = heartbeat.Send(daemon.Start{Key: key})
	for err == nil {
		var n daemon.Note
		if err = heartbeat.Receive(&n); err == nil && n.Ready {
			fmt.Println("ready", cmd.Process.Pid)
		}
	}
	_ = heartbeat.Close() // it is cut at the other end
	_ = cmd.Wait()        // it was killed
	if err := syscall.Unmount(j.Dirs.Mount, unix.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("the mount of a dead daemon: %w", err)
	}
	fmt.Println("ended", cmd.Process.Pid)
	return nil
}

// spawn starts a daemon.
func spawn(file, program string) (*exec.Cmd, *daemon.Heartbeat, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	near, far := os.NewFile(uintptr(fds[0]), "heartbeat"), os.NewFile(uintptr(fds[1]), "heartbeat")
	defer far.Close()
	log, err := os.OpenFile(filepath.Join(filepath.Dir(file), "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	words := append(strings.Fields(os.Getenv(wrapOf)), program, "daemon", "--job-file", file)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.ExtraFiles = []*os.File{far} // daemon.HeartbeatFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		_ = near.Close()
		return nil, nil, err
	}
	return cmd, daemon.NewHeartbeat(near), nil
}
