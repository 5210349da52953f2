package soak

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// evidence is kept after a failed run: the faults with their times, which the logs lack, since the nodes' clocks are
// changed, and the goroutines of all daemons while an operation took too long.
type evidence struct {
	mu     sync.Mutex
	faults []string
	dumped time.Time
	stacks []string // files
}

// note records a fault or an action of the run.
func (e *evidence) note(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = append(e.faults, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// suspect dumps the goroutines of all daemons if an operation nearly reaches its limit. The caller stops the timer.
func (j *testJob) suspect(what string) *time.Timer {
	return time.AfterFunc(answerTime-time.Second, func() {
		j.seen.mu.Lock()
		defer j.seen.mu.Unlock()
		if time.Since(j.seen.dumped) < answerTime {
			return
		}
		j.seen.dumped = time.Now()
		for _, x := range j.nodes {
			path := filepath.Join(filepath.Dir(x.file), fmt.Sprintf("stacks%d", len(j.seen.stacks)))
			text := fmt.Sprintf("%s %s\n%s", j.seen.dumped.Format("15:04:05.000"), what, goroutines(x.job.CtlSocket()))
			if os.WriteFile(path, []byte(text), 0o600) == nil {
				j.seen.stacks = append(j.seen.stacks, path)
			}
		}
	})
}

// goroutines returns the stacks of a daemon, or the error.
func goroutines(socket string) string {
	c := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	defer c.CloseIdleConnections()
	r, err := c.Get("http://daemon/debug/pprof/goroutine?debug=2")
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// keepEvidence copies the evidence and the logs to a permanent directory, and logs its path.
func (j *testJob) keepEvidence() {
	dir, err := os.MkdirTemp("", "soak-failed")
	if err != nil {
		j.t.Log(err)
		return
	}
	j.seen.mu.Lock()
	defer j.seen.mu.Unlock()
	files := map[string]string{}
	for _, x := range j.nodes {
		files[fmt.Sprintf("node%d.log", x.id)] = x.log
	}
	for _, path := range j.seen.stacks {
		files[filepath.Base(filepath.Dir(path))+"."+filepath.Base(path)] = path
	}
	for name, path := range files {
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			j.t.Log(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "faults"), []byte(strings.Join(j.seen.faults, "\n")+"\n"), 0o600); err != nil {
		j.t.Log(err)
	}
	j.t.Logf("the logs, the faults, and the goroutines during operations that took long are in %s; last faults:\n%s",
		dir, strings.Join(j.seen.faults[max(0, len(j.seen.faults)-12):], "\n"))
}
