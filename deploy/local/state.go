package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/deploy/mounts"
)

// Node is one daemon of a local job.
type Node struct {
	Host  string `json:"host"`
	Mount string `json:"mount"`
	Sock  string `json:"sock"` // control socket
	Log   string `json:"log"`
	PID   int    `json:"pid"`
	Start string `json:"start"` // the process's start time, from /proc
}

// State is the record that Up writes.
type State struct {
	Dir   string `json:"dir"`
	Nodes []Node `json:"nodes"`
}

func hidden(dir string) string    { return filepath.Join(dir, ".bivouac") }
func statePath(dir string) string { return filepath.Join(hidden(dir), "state.json") }

// madePath returns a file that exists if an Up has made dir, so that Down removes dir. It need not be the Up that owns
// the job.
func madePath(dir string) string { return filepath.Join(hidden(dir), "made") }

// ErrNothing is the error of Down if there is no job.
var ErrNothing = errors.New("nothing is up")

// ErrOthers is the error for a job of another user.
var ErrOthers = errors.New("belongs to another user")

// Load reads the record of Up in dir; fs.ErrNotExist if there is no job.
func Load(dir string) (*State, error) {
	b, err := os.ReadFile(statePath(dir))
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("the filesystem in %s %w: start your own with bivouac up and another --dir", dir, ErrOthers)
	}
	if err != nil {
		return nil, err
	}
	s := new(State)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s: %w", statePath(dir), err)
	}
	return s, nil
}

func (s *State) save() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return node.ReplaceFile(statePath(s.Dir), append(b, '\n'))
}

// startTime returns field 22 of /proc/pid/stat; "" if the process has ended or is a zombie.
func startTime(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return ""
	}
	return f[19]
}

func (n Node) alive() bool { return n.PID > 0 && n.Start != "" && startTime(n.PID) == n.Start }

// Dead returns the nodes whose daemons have ended. Nothing restarts them. A daemon in another process namespace is
// found by its control socket.
func (s *State) Dead() (dead []Node) {
	for _, n := range s.Nodes {
		if n.PID == 0 || n.alive() {
			continue
		}
		if c, err := net.Dial("unix", n.Sock); err == nil {
			_ = c.Close() // nothing was sent
			continue
		}
		dead = append(dead, n)
	}
	return dead
}

// lockWait is how long lock waits: a child of an Up that was just killed may hold the lock until it executes the
// daemon.
const lockWait = 3 * time.Second

// lock excludes other Ups and Downs of the same directory.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(hidden(dir), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for end := time.Now().Add(lockWait); ; <-t.C {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if errors.Is(err, syscall.EWOULDBLOCK) && time.Now().Before(end) {
			continue
		}
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another bivouac up or down works on %s: wait for it", dir)
		}
		return nil, err
	}
}

// strays returns the daemons of dir that are not in the state file: an Up that is killed right after it started a
// daemon cannot record it. They end by themselves soon after.
func strays(dir string) []Node {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil
	}
	var found []Node
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(b, []byte("\x00--job-file\x00"+hidden(dir)+"/")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err == nil {
			found = append(found, Node{PID: pid, Start: startTime(pid)})
		}
	}
	return found
}

// real returns the path by which the kernel knows dir, which need not exist.
func real(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("no directory given: use --dir D")
	}
	if !utf8.ValidString(dir) {
		return "", fmt.Errorf("%q is not UTF-8: choose another --dir", dir)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if p, err := filepath.EvalSymlinks(dir); err == nil {
		return p, nil
	}
	if p, err := filepath.EvalSymlinks(filepath.Dir(dir)); err == nil {
		return filepath.Join(p, filepath.Base(dir)), nil
	}
	return dir, nil
}

// mountpoints returns the mountpoints of nodes in dir, and those below them, the outermost first: to reach a mount
// below another one, the kernel would ask the outer one's daemon.
func mountpoints(dir string) ([]string, error) {
	table, err := mounts.Table()
	var found []string
	for _, m := range table {
		if ofNode(dir, m.Path) {
			found = append(found, m.Path)
		}
	}
	slices.SortStableFunc(found, func(a, b string) int { return len(a) - len(b) })
	return found, err
}

// ofNode reports whether path is dir/nodeN or below it.
func ofNode(dir, path string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/node")
	if !ok {
		return false
	}
	n, _, _ := strings.Cut(rest, "/")
	_, err := strconv.ParseUint(n, 10, 16)
	return err == nil
}

// exists reports whether path exists, without accessing its target: a stat of a dead mount fails with ENOTCONN.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
