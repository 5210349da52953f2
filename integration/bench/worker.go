package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A worker is this program started again: it prints "ready", waits for a line, works, and prints how long that took.

// ops maps names to operations of a worker on one of its files.
var ops = map[string]func(path string) error{
	"create": create,
	"small":  func(path string) error { return write(path, payload) },
	"tiny":   func(path string) error { return write(path, payload[:1]) },
	"stat": func(path string) error {
		var st unix.Stat_t
		return unix.Lstat(path, &st)
	},
	"unlink": unix.Unlink,
	"mkdir":  func(path string) error { return unix.Mkdir(path, 0o755) },
	"rmdir":  unix.Rmdir,
	"rename": func(path string) error { return unix.Rename(path, path+"x") },
	"open":   open,
}

// payload is the content of a small file.
var payload = make([]byte, 4096)

func create(path string) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func open(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func write(path string, p []byte) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, p)
	return errors.Join(err, unix.Close(fd))
}

func worker(args []string) error {
	switch op := args[0]; {
	case op == "loopback" && len(args) == 4:
		return serveLoopback(args[1], args[2], args[3])
	case op == "read" && len(args) == 2:
		return readList(args[1])
	case op == "stream-read", op == "stream-write", op == "random-read":
		return streamWorker(op, args[1:])
	case op == "cold-random" && len(args) == 3:
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return coldRandomRead(args[1], n)
	case op == "random-write" && len(args) == 3:
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return randomWrite(args[1], n)
	case op == "many-read" && len(args) == 3:
		return manyRead(args[1], args[2] == "direct")
	case op == "raw" && len(args) == 3:
		return serveRaw(args[1], args[2])
	case op == "raw-sink" && len(args) == 3:
		return serveRawSink(args[1], args[2])
	case op == "piece-write" && len(args) == 5:
		return pieceWorker(args[1], args[2:])
	case op == "bare-server" && len(args) == 4:
		return bareServer(args[1], args[2], args[3])
	case op == "bare-client" && len(args) == 4:
		return bareWorker(args[1:])
	case op == "bare-sink" && len(args) == 2:
		return bareSink(args[1])
	case op == "bare-source" && len(args) == 3:
		n, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil {
			return err
		}
		return bareSource(args[1], n)
	case op == "rpc-server" && len(args) == 3:
		return rpcServer(args[1], args[2])
	case op == "rpc-client" && len(args) == 3:
		return rpcClient(args[1], args[2])
	case op == "slowpfs" && len(args) > 3:
		return serveSlow(args[1], args[2], args[3:])
	case strings.HasPrefix(op, "store-") && len(args) == 3:
		return storeWorker(strings.TrimPrefix(op, "store-"), args[1], args[2])
	case strings.HasPrefix(op, "pebble-") && len(args) == 3:
		return pebbleWorker(strings.TrimPrefix(op, "pebble-"), args[1], args[2])
	case ops[op] != nil && len(args) == 4:
		n, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return filesWorker(ops[op], args[1], args[2], n)
	}
	return fmt.Errorf("unknown work %q: %w", args, syscall.EINVAL)
}

func filesWorker(do func(string) error, dir, prefix string, n int) error {
	paths := make([]string, n)
	for i := range paths {
		paths[i] = filepath.Join(dir, prefix+strconv.Itoa(i))
	}
	return timed(func() error {
		for _, p := range paths {
			if err := do(p); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
		return nil
	})
}

// timed runs the protocol of a worker around its work.
func timed(work func() error) error {
	ready()
	awaitInput()
	before, err := processTime(os.Getpid())
	if err != nil {
		return err
	}
	began := time.Now()
	if err := work(); err != nil {
		return err
	}
	wall := time.Since(began)
	after, err := processTime(os.Getpid())
	fmt.Println(wall.Nanoseconds(), (after - before).Nanoseconds())
	return err
}

func ready() { fmt.Println("ready") }

// awaitInput returns at the first line, or at the end of input.
func awaitInput() { _, _ = bufio.NewReader(os.Stdin).ReadString('\n') }

// child is a worker as seen by its parent.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// end ends a worker that serves until its input ends.
func (c *child) end() {
	_ = c.in.Close() // a pipe
	_ = c.cmd.Wait() // it has no result
}

// spawn starts a worker and returns when it is ready.
func spawn(args ...string) (*child, error) { return spawnIn(nil, args...) }

// spawnIn is spawn with a prefix before the command.
func spawnIn(wrap []string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argv := slices.Concat(wrap, []string{self, "worker"}, args)
	c := &child{cmd: exec.Command(argv[0], argv[1:]...)}
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the parent, which ends the worker
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if line, err := c.out.ReadString('\n'); err != nil || line != "ready\n" {
		_ = c.in.Close()
		return nil, fmt.Errorf("worker %q did not start: %w", args, errors.Join(err, c.cmd.Wait()))
	}
	return c, nil
}

// spawnAll starts n workers, the i-th with the arguments args(i). If one does not start, all are ended.
func spawnAll(n int, args func(i int) ([]string, error)) ([]*child, error) {
	return spawnAllIn(nil, n, args)
}

// spawnAllIn is spawnAll with a prefix before the commands.
func spawnAllIn(wrap []string, n int, args func(i int) ([]string, error)) ([]*child, error) {
	var cs []*child
	for i := range n {
		a, err := args(i)
		var c *child
		if err == nil {
			c, err = spawnIn(wrap, a...)
		}
		if err != nil {
			for _, c := range cs {
				_ = c.cmd.Process.Kill()
				_ = c.cmd.Wait() // it was killed
			}
			return nil, err
		}
		cs = append(cs, c)
	}
	return cs, nil
}

// usage is the cost of work.
type usage struct {
	wall time.Duration
	cpu  time.Duration // of the workers
}

// together starts all children's work at once and waits for the last.
func together(cs []*child) (usage, error) {
	began := time.Now()
	for _, c := range cs {
		_, _ = io.WriteString(c.in, "go\n") // a dead child is reported below
	}
	var u usage
	var errs []error
	for _, c := range cs {
		var wall, cpu time.Duration
		_, err := fmt.Fscan(c.out, &wall, &cpu)
		u.wall = time.Since(began)
		u.cpu += cpu
		_ = c.in.Close() // a pipe
		errs = append(errs, err, c.cmd.Wait())
	}
	return u, errors.Join(errs...)
}

// load has one process for each directory run op on n files each, and returns the cost.
func load(op string, dirs []string, n int) (usage, error) {
	cs, err := spawnAll(len(dirs), func(i int) ([]string, error) {
		return []string{op, dirs[i], "p" + strconv.Itoa(i) + "-", strconv.Itoa(n)}, nil
	})
	if err != nil {
		return usage{}, err
	}
	return together(cs)
}
