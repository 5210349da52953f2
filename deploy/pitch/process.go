package pitch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is known by its id and its start time, so that one which got the
// same id later is never taken for it.
type process struct {
	pid   int
	start string // field 22 of /proc/pid/stat
}

func (p process) String() string { return fmt.Sprintf("%d %s", p.pid, p.start) }

// startOf is the start time of a process; "" if it is gone or a zombie.
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

// readProcess reads a pid file; the zero process, which is not alive, if there
// is none or it is damaged.
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

// kill ends p and, as p leads a session of its own, all of its group.
func (p process) kill() {
	if !p.alive() {
		return
	}
	if pgid, err := unix.Getpgid(p.pid); err == nil && pgid == p.pid {
		_ = unix.Kill(-p.pid, unix.SIGKILL) // it may end by itself meanwhile
	}
	_ = unix.Kill(p.pid, unix.SIGKILL)
}

// gone waits until p has ended.
func (p process) gone(ctx context.Context) error {
	return poll(ctx, func() bool { return !p.alive() })
}

// pollEvery is how often a condition of the system is looked at that nobody
// tells us of.
const pollEvery = 10 * time.Millisecond

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

// end kills p and waits, for at most limit.
func (p process) end(ctx context.Context, limit time.Duration) error {
	if !p.alive() {
		return nil
	}
	p.kill()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := p.gone(ctx); err != nil {
		return fmt.Errorf("process %d does not die: %w", p.pid, errors.Join(err, unix.EBUSY))
	}
	return nil
}
