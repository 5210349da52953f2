package local

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/metadata"
)

// maxSock is the longest path of a Unix socket, in bytes.
const maxSock = 107

// Config is the input of Up. Every field but Dir may be zero, which is its default.
type Config struct {
	Dir      string
	Nodes    int   // 4
	Capacity int64 // bytes on each node; 0: the size of the disk
	Scratch  job.Reserve
	// Rate, ServeRate and Ahead are those of job.File.
	Rate, ServeRate int64
	Ahead           int64
	VerifyReads     bool        // as in job.File
	NoChecksums     bool        // as in job.File
	KernelView      string      // as in job.File
	Protect         secure.Mode // as in job.File
	Debug           bool        // as in job.File
	Seed            uint64      // of placement
	Datasets        []job.Dataset
	StageOut        []job.StageOut
	Timeout         time.Duration // for the start; one minute
	FailureTimeout  time.Duration // after which a silent node is given up; 15 s
	Program         string        // the bivouac binary; this one
	// Addrs, if set, is where each node listens; the default is a free port of loopback. Wrap, if set, is prefixed to
	// node i's command: together they put nodes into network namespaces.
	Addrs [][]string
	// Network is as in job.File, for nodes with Addrs.
	Network []string
	Wrap    func(i int) []string
}

func (c *Config) setDefaults() error {
	c.Nodes = cmp.Or(c.Nodes, 4)
	if err := CheckNodes(c.Nodes); err != nil {
		return err
	}
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	var err error
	if c.Program == "" {
		if c.Program, err = os.Executable(); err != nil {
			return err
		}
	}
	c.Dir, err = real(c.Dir)
	return err
}

// Up starts the job and returns when every mount can be used. If it fails, it leaves nothing behind.
func Up(ctx context.Context, cfg Config) (*State, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	if err := errors.Join(checkFuse(), checkRoom(cfg.Dir, cfg.Nodes)); err != nil {
		return nil, err
	}
	s, unlock, err := claim(cfg.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	l := &launch{cfg: cfg, state: s}
	defer l.close()
	if err := l.run(ctx); err != nil {
		return nil, errors.Join(err, teardown(s, 0))
	}
	return s, nil
}

// launch is an Up in progress.
type launch struct {
	cfg       Config
	state     *State
	key       string
	addrs     [][]string
	socks     []*os.File
	heartbeat []*daemon.Heartbeat
}

func (l *launch) close() {
	for _, f := range l.socks {
		_ = f.Close()
	}
	for _, x := range l.heartbeat {
		_ = x.Close()
	}
}

func (l *launch) run(ctx context.Context) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	l.key = hex.EncodeToString(key)
	if err := l.bind(); err != nil {
		return err
	}
	for i := range l.cfg.Nodes { // recorded before it is made
		j := l.job(i)
		l.state.Nodes = append(l.state.Nodes, Node{
			Host: j.Hosts[i], Mount: j.Dirs.Mount, Sock: j.CtlSocket(), Log: filepath.Join(filepath.Dir(j.Dirs.Run), "log"),
		})
	}
	if err := l.state.save(); err != nil {
		return err
	}
	for i := range l.cfg.Nodes {
		if err := l.start(i); err != nil {
			return fmt.Errorf("node%d: %w", i, err)
		}
	}
	return l.wait(ctx)
}

// bind takes a free port of loopback for every node before any node starts, so that two jobs cannot get the same port.
func (l *launch) bind() error {
	if l.cfg.Addrs != nil {
		l.addrs = l.cfg.Addrs
		return nil
	}
	for range l.cfg.Nodes {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		f, err := ln.(*net.TCPListener).File()
		_ = ln.Close() // f is a duplicate, which continues to listen
		if err != nil {
			return err
		}
		l.socks = append(l.socks, f)
		l.addrs = append(l.addrs, []string{ln.Addr().String()})
	}
	return nil
}

func (l *launch) job(i int) *job.File {
	home := filepath.Join(hidden(l.cfg.Dir), "node"+strconv.Itoa(i))
	j := &job.File{
		Version: job.Version, ID: "local", UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
		Self: metadata.NodeID(i), Addrs: l.addrs, Capacity: l.cfg.Capacity, Scratch: l.cfg.Scratch, Rate: l.cfg.Rate, ServeRate: l.cfg.ServeRate, Ahead: l.cfg.Ahead, VerifyReads: l.cfg.VerifyReads, NoChecksums: l.cfg.NoChecksums, KernelView: l.cfg.KernelView, Network: l.cfg.Network, Protect: l.cfg.Protect, Debug: l.cfg.Debug, Seed: l.cfg.Seed,
		Datasets: l.cfg.Datasets, StageOut: l.cfg.StageOut,
		FailureTimeout: int(l.cfg.FailureTimeout / time.Second),
		StartTimeout:   int(l.cfg.Timeout / time.Second), Created: metadata.TimeOf(time.Now()),
	}
	for k := range l.cfg.Nodes {
		j.Hosts = append(j.Hosts, "node"+strconv.Itoa(k))
	}
	j.Dirs = job.Dirs{
		Store: []string{filepath.Join(home, "store")}, Run: filepath.Join(home, "run"),
		Mount: filepath.Join(l.cfg.Dir, "node"+strconv.Itoa(i)),
	}
	return j
}

func (l *launch) start(i int) error {
	j := l.job(i)
	if len(j.CtlSocket()) > maxSock {
		return fmt.Errorf("the path %s is too long for a socket (%d bytes, at most %d): choose a shorter --dir",
			j.CtlSocket(), len(j.CtlSocket()), maxSock)
	}
	home := filepath.Dir(j.Dirs.Run)
	for _, d := range []string{home, j.Dirs.Mount} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	file := filepath.Join(home, "job.json")
	if err := j.Write(file); err != nil {
		return err
	}
	n := &l.state.Nodes[i]
	log, err := os.OpenFile(n.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, heartbeat, err := l.spawn(i, file, log)
	if err != nil {
		return err
	}
	l.heartbeat = append(l.heartbeat, heartbeat)
	n.PID, n.Start = cmd.Process.Pid, startTime(cmd.Process.Pid)
	go func() { _ = cmd.Wait() }()         // the heartbeat connection reports its end
	if err := l.state.save(); err != nil { // before the daemon can outlive this process
		return err
	}
	if err := heartbeat.Send(daemon.Start{Key: l.key, Detached: true, Listen: l.socks != nil}); err != nil {
		return errEnded(log.Name())
	}
	return nil
}

// spawn starts the daemon with its heartbeat, an unused descriptor where a keeper
// would put /dev/fuse, and its listener.
func (l *launch) spawn(i int, file string, log *os.File) (*exec.Cmd, *daemon.Heartbeat, error) {
	// Non-blocking, so that close ends a Receive.
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	near, far := os.NewFile(uintptr(fds[0]), "heartbeat"), os.NewFile(uintptr(fds[1]), "heartbeat")
	defer far.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		_ = near.Close()
		return nil, nil, err
	}
	defer null.Close()
	args := []string{l.cfg.Program, "daemon", "--job-file", file}
	if l.cfg.Wrap != nil {
		args = append(l.cfg.Wrap(i), args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{far, null}
	if l.socks != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, l.socks[i])
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	if err := daemon.StartProcess(cmd); err != nil {
		_ = near.Close()
		return nil, nil, err
	}
	return cmd, daemon.NewHeartbeat(near), nil
}

// wait returns when every daemon is ready, or with the first failure.
func (l *launch) wait(ctx context.Context) error {
	up := ctx
	ctx, cancel := context.WithTimeout(up, l.cfg.Timeout+15*time.Second)
	defer cancel()
	errs := make(chan error, len(l.heartbeat)) // one result of each daemon
	var wg sync.WaitGroup
	for i := range l.heartbeat {
		wg.Go(func() {
			errs <- l.waitNode(i)
		})
	}
	defer wg.Wait()
	for range l.heartbeat {
		var err error
		select {
		case err = <-errs:
		case <-ctx.Done():
			err = fmt.Errorf("not up after %v: give it longer with --timeout", l.cfg.Timeout)
			if up.Err() != nil {
				err = errors.New("up was interrupted, and has removed everything that it had started")
			}
		}
		if err != nil {
			for _, x := range l.heartbeat { // unblocks the others
				_ = x.Close()
			}
			return err
		}
	}
	return nil
}

// errEnded returns an error with the last words of a daemon, since its log is removed with the job.
func errEnded(log string) error {
	b, err := os.ReadFile(log)
	if err != nil {
		return fmt.Errorf("the daemon ended while it started: %w", err)
	}
	words := "its log is empty"
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" {
			words = line
		}
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			break
		}
	}
	return fmt.Errorf("the daemon ended while it started: %s", words[:min(len(words), 300)])
}

func (l *launch) waitNode(i int) error {
	n := l.state.Nodes[i]
	for {
		var note daemon.Note
		err := l.heartbeat[i].Receive(&note)
		switch {
		case err == io.EOF || err != nil && note == (daemon.Note{}):
			return fmt.Errorf("%s: %w", n.Host, errEnded(n.Log))
		case note.Failed != "":
			return fmt.Errorf("%s: %s", n.Host, strings.TrimSpace(note.Failed))
		case note.Ready:
			return nil
		}
	}
}
