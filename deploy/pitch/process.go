package pitch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process identifies a process by pid and start time, so that a reused pid is not mistaken for it.
type process struct {
	pid   int
	start string // field 22 of /proc/pid/stat
}

func (p process) String() string { return fmt.Sprintf("%d %s", p.pid, p.start) }

// startOf returns the start time of a process; "" if it has ended or is a zombie.
func startOf(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	text := string(b)
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return ""
	}
	return f[19]
}

func processOf(pid int) process { return process{pid, startOf(pid)} }

// readProcess reads a pid file. If the file is missing or invalid it returns the zero process, which is not alive.
func readProcess(path string) process {
	b, err := os.ReadFile(path)
	if err != nil {
		return process{}
	}
	pid, start, ok := strings.Cut(strings.TrimSpace(string(b)), " ")
	n, err := strconv.Atoi(pid)
	if !ok || err != nil || n <= 1 {
		return process{}
	}
	return process{n, start}
}

func (p process) write(path string) error {
	return replaceFile(path, []byte(p.String()+"\n"), 0o644)
}

func (p process) alive() bool { return p.pid > 1 && p.start != "" && startOf(p.pid) == p.start }

// kill kills p and, if p is a group leader, its process group.
func (p process) kill() {
	if !p.alive() {
		return
	}
	if pgid, err := unix.Getpgid(p.pid); err == nil && pgid == p.pid {
		_ = unix.Kill(-p.pid, unix.SIGKILL) // it may have ended
	}
	_ = unix.Kill(p.pid, unix.SIGKILL)
}

// gone waits until p has ended or ctx ends.
func (p process) gone(ctx context.Context) error {
	return poll(ctx, func() bool { return !p.alive() })
}

// pollEvery is the interval of poll.
const pollEvery = 10 * time.Millisecond

// poll checks a condition that has no notification until it holds or ctx ends.
func poll(ctx context.Context, done func() bool) error {
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	return nil
}

// end kills p and waits for its end, up to limit.
func (p process) end(ctx context.Context, limit time.Duration) error {
	if !p.alive() {
		return nil
	}
	p.kill()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := p.gone(ctx); err != nil {
		return fmt.Errorf("process %d did not exit after SIGKILL: %w", p.pid, errors.Join(err, unix.EBUSY))
	}
	return nil
}

const (
	// idProgram finds groups in LDAP, too.
	idProgram = "/usr/bin/id"
	idTimeout = 10 * time.Second
)

// credential returns the user's credential with all groups that the system knows.
func credential(uid, gid uint32) (*syscall.Credential, error) {
	c := &syscall.Credential{Uid: uid, Gid: gid}
	ctx, cancel := context.WithTimeout(context.Background(), idTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, idProgram, "-G", "--", strconv.FormatUint(uint64(uid), 10))
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{"PATH=" + safePath}, "/", time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("groups of uid %d: %w: run id -G %d on this node", uid, err, uid)
	}
	for f := range strings.FieldsSeq(string(out)) {
		g, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("groups of uid %d: %w", uid, err)
		}
		c.Groups = append(c.Groups, uint32(g))
	}
	return c, nil
}
