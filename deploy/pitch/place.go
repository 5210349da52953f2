package pitch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/job"
)

var (
	jobName   = regexp.MustCompile(`^[1-9][0-9]{0,9}$`)
	storeName = regexp.MustCompile(`^[1-9][0-9]{0,9}\.[0-9]{1,10}$`)
)

// place computes the paths of a job on this node from the site and the job id, which has
// digits only.
type place struct {
	site Site
	job  string
}

func (p place) run() string          { return filepath.Join(p.site.Run, p.job) }
func (p place) file(n string) string { return filepath.Join(p.run(), n) }
func (p place) state() string        { return p.file("state") }
func (p place) keeperPid() string    { return p.file("keeper.pid") }
func (p place) daemonPid() string    { return p.file("daemon.pid") }
func (p place) recordFile() string   { return p.file("record.json") }
func (p place) jobFile() string      { return p.file("job.json") }
func (p place) sock() string         { return p.file("keeper.sock") }
func (p place) ctl() string          { return p.file("d") }
func (p place) mount() string        { return filepath.Join(p.site.Mount, p.job) }
func (p place) log() string          { return filepath.Join(p.site.Log, p.job+".log") }

// stores returns the store directories of one start of the job.
func (p place) stores(restart int) []string {
	var dirs []string
	for _, s := range p.site.Store {
		dirs = append(dirs, filepath.Join(s, p.job+"."+strconv.Itoa(restart)))
	}
	return dirs
}

// allStores returns the existing store directories of all starts of the job.
func (p place) allStores() []string {
	var dirs []string
	for _, s := range p.site.Store {
		entries, err := os.ReadDir(s)
		if err != nil {
			continue // no store, so nothing in it
		}
		for _, e := range entries {
			if storeName.MatchString(e.Name()) && strings.HasPrefix(e.Name(), p.job+".") {
				dirs = append(dirs, filepath.Join(s, e.Name()))
			}
		}
	}
	return dirs
}

// exists reports whether path exists, without following a link.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Phase is the first word of a state.
type Phase string

// The phases of a job on a node.
const (
	Starting Phase = "starting"
	Ready    Phase = "ready"
	Failed   Phase = "failed"
)

// State is the line in the state file. It tells the plugin, which must not touch the mount,
// whether the job is ready on this node.
type State struct {
	Phase  Phase
	Detail string // the mountpoint when Ready, the reason when Failed
}

// String returns the line.
func (s State) String() string {
	if s.Detail == "" {
		return string(s.Phase)
	}
	return string(s.Phase) + " " + s.Detail
}

// ReadState reads the state of a job on this node; fs.ErrNotExist if it has none.
func ReadState(site Site, job string) (State, error) {
	if !jobName.MatchString(job) {
		return State{}, fmt.Errorf("%q is not a job id", job)
	}
	b, err := os.ReadFile(place{site, job}.state())
	if err != nil {
		return State{}, err
	}
	phase, detail, _ := strings.Cut(strings.TrimSuffix(string(b), "\n"), " ")
	switch s := (State{Phase(phase), detail}); s.Phase {
	case Starting, Ready, Failed:
		return s, nil
	}
	return State{}, fmt.Errorf("state file of job %s: unknown state %.40q", job, b)
}

// RunDir returns the directory of the control socket of a job's daemon.
func RunDir(site Site, job string) (string, error) {
	if !jobName.MatchString(job) {
		return "", fmt.Errorf("%q is not a job id", job)
	}
	return place{site, job}.ctl(), nil
}

// maxLine bounds a state: the plugin reads it into a buffer of 1024 bytes.
const maxLine = 900

// oneLine makes a text safe for a state file, a reply or a log.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(strings.TrimSpace(text), "?"))
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "") + "…"
	}
	return text
}

func (p place) writeState(s State) error {
	s.Detail = oneLine(s.Detail)
	line := []byte(s.String() + "\n")
	err := replaceFile(p.state(), line, 0o644)
	if (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) && overwrite(p.state(), line) == nil {
		return nil
	}
	return err
}

// overwrite writes into an existing file, which needs no disk space. A concurrent reader may see the end of the old
// text after the new.
func overwrite(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Truncate(int64(len(b))), f.Close())
}

// replaceFile replaces a file atomically.
func replaceFile(path string, b []byte, mode os.FileMode) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// record holds the decisions of the prolog: everything that a keeper needs except the key.
type record struct {
	Site Site     `json:"site"`
	Job  job.File `json:"job"`
	// Deadline is when the keeper gives up, in nanoseconds since boot: the wall clock may be set for the first time
	// while the job starts.
	Deadline int64 `json:"deadline"`
	// Failed is why the job cannot start; the keeper then only publishes it.
	Failed string `json:"failed,omitempty"`
}

// until returns Deadline as a time of this process.
func (r *record) until() time.Time { return time.Now().Add(time.Duration(r.Deadline) - uptime()) }

// uptime returns the time since boot.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // every Linux has it
	}
	return time.Duration(t.Nano())
}

func (r *record) place() place { return place{r.Site, r.Job.ID} }

func (r *record) write() error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replaceFile(r.place().recordFile(), b, 0o600)
}

func readRecord(path string) (*record, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(record)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !jobName.MatchString(r.Job.ID) {
		return nil, fmt.Errorf("%s: %q is not a job id", path, r.Job.ID)
	}
	return r, r.Site.validate()
}
