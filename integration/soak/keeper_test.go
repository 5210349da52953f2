package soak

import (
	"bufio"
	"context"
	"encoding/binary"
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
	"github.com/bivouacfs/bivouac/deploy/mounts"
)

// A keeper is a separate process, this program with its node's job file in the environment: a process that forks with
// files of a mount open waits for them.
const (
	keeperOf  = "BIVOUAC_TEST_KEEPER"
	programOf = "BIVOUAC_TEST_PROGRAM"
	awayOf    = "BIVOUAC_TEST_AWAY"
	wrapOf    = "BIVOUAC_TEST_WRAP" // prefix of the daemon's command
	diskOf    = "BIVOUAC_TEST_DISK" // the directory of a drive, for a process that makes it fail
)

func TestMain(m *testing.M) {
	if file := os.Getenv(keeperOf); file != "" {
		if err := keeper(file, os.Getenv(programOf)); err != nil {
			fmt.Println("keeper:", err)
			os.Exit(1)
		}
		return
	}
	if dir := os.Getenv(diskOf); dir != "" {
		if err := serveDisk(dir); err != nil {
			fmt.Fprintln(os.Stderr, "disk:", err)
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

// nodeKeeper keeps the FUSE connection across restarts of the daemon, as deploy/pitch does.
type nodeKeeper struct {
	job           *job.File
	file, program string
	key           string
	conn          *connection // nil: not mounted
}

// connection is a mounted FUSE connection, and the memory in which a daemon leaves its open files to the next.
type connection struct {
	dev, memory *os.File
	kept        bool // another daemon can take it over
}

// keeper restarts the daemon of a node repeatedly, until standard input is closed, or says that the node is lost for
// good. It reports events in lines.
func keeper(file, program string) error {
	runtime.LockOSThread()                         // the daemon ends with this thread
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
	k := &nodeKeeper{job: j, file: file, program: program, key: strings.TrimSpace(key)}
	backstop, err := k.connect() // has no server: once the one above ends, calls fail with ENOTCONN
	if err != nil {
		return err
	}
	backstop.close()
	defer k.unmount() // also the backstop
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = in.ReadByte() // only the end can follow
		cancel()
	}()
	for ctx.Err() == nil {
		if err := k.life(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest()):
		}
	}
	if k.conn != nil {
		k.unmount()
	}
	return nil
}

// rest returns how long a node stays without a daemon. With -away it is sometimes long enough for the others to
// declare the node lost.
func rest() time.Duration {
	if n, _ := strconv.Atoi(os.Getenv(awayOf)); n > 0 && rand.IntN(n) == 0 {
		return 18*time.Second + rand.N(6*time.Second)
	}
	return rand.N(700 * time.Millisecond)
}

// connect mounts a connection.
func (k *nodeKeeper) connect() (*connection, error) {
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=1048576", dev.Fd())
	if err := unix.Mount("bivouac", k.job.Dirs.Mount, mounts.FUSEType, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		_ = dev.Close() // nothing uses it
		return nil, err
	}
	fd, err := unix.MemfdCreate("bivouac", unix.MFD_CLOEXEC)
	if err != nil {
		_ = dev.Close() // nothing uses it
		return nil, err
	}
	return &connection{dev: dev, memory: os.NewFile(uintptr(fd), "handover")}, nil
}

func (c *connection) close() {
	_ = c.dev.Close()    // nothing was written
	_ = c.memory.Close() // it belongs to the daemons
}

// unmount ends the topmost connection: pending requests fail.
func (k *nodeKeeper) unmount() {
	if k.conn != nil {
		k.conn.close()
		k.conn = nil
	}
	if err := unix.Unmount(k.job.Dirs.Mount, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
		fmt.Println("cannot unmount:", err)
	}
}

// resend makes the kernel resend the requests that the dead daemon has not answered (FUSE_NOTIFY_RESEND).
func (c *connection) resend() error {
	var b [16]byte
	binary.NativeEndian.PutUint32(b[:], uint32(len(b)))
	binary.NativeEndian.PutUint32(b[4:], 7)
	_, err := unix.Write(int(c.dev.Fd()), b[:])
	return err
}

// grace bounds how long a daemon may take for an orderly end.
const grace = 20 * time.Second

// life runs one daemon. Its connection continues after it, if another daemon can take it over.
func (k *nodeKeeper) life(ctx context.Context) (err error) {
	if k.conn == nil {
		if k.conn, err = k.connect(); err != nil {
			return err
		}
	}
	cmd, heartbeat, clock, err := k.spawn()
	if err != nil {
		return err
	}
	fmt.Println("started", cmd.Process.Pid, clock)
	defer context.AfterFunc(ctx, func() {
		_ = heartbeat.Close() // this ends it
		time.AfterFunc(grace, func() { _ = cmd.Process.Kill() })
	})()
	err = heartbeat.Send(daemon.Start{Key: k.key, Fuse: true, Handover: true, Adopt: k.conn.kept})
	for err == nil {
		var n daemon.Note
		if err = heartbeat.Receive(&n); err == nil && n.Ready {
			k.conn.kept = n.Kept
			fmt.Println("ready", cmd.Process.Pid)
		}
	}
	_ = heartbeat.Close() // the other end is closed
	_ = cmd.Wait()        // it was killed
	if !k.conn.kept || k.conn.resend() != nil {
		k.unmount()
	}
	fmt.Println("ended", cmd.Process.Pid)
	return nil
}

// spawn starts a daemon, and returns the address of its clock offset.
func (k *nodeKeeper) spawn() (*exec.Cmd, *daemon.Heartbeat, int64, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, 0, err
	}
	near, far := os.NewFile(uintptr(fds[0]), "heartbeat"), os.NewFile(uintptr(fds[1]), "heartbeat")
	defer far.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, nil, 0, err
	}
	defer null.Close()
	log, err := os.OpenFile(filepath.Join(filepath.Dir(k.file), "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, 0, err
	}
	defer log.Close()
	words := append(strings.Fields(os.Getenv(wrapOf)), k.program, "daemon", "--job-file", k.file)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.ExtraFiles = []*os.File{far, k.conn.dev, null, null, k.conn.memory} // daemon.HeartbeatFD, FuseFD, ListenFD, BackingFD, HandoverFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	offset, err := clockOffset(k.file)
	if err != nil {
		return nil, nil, 0, err
	}
	clock, err := startWithClock(cmd, k.program, offset)
	if err != nil {
		_ = near.Close()
		return nil, nil, 0, err
	}
	return cmd, daemon.NewHeartbeat(near), clock, nil
}
