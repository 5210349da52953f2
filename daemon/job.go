package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// JobVersion is the version of the job file that this program writes and reads.
const JobVersion = 1

// Job is the job file: all that a daemon has to know of its job, but the key,
// which is never written to a file that outlives its reader.
type Job struct {
	Version int             `json:"version"`
	ID      string          `json:"id"`      // Slurm's job id, or the name that up made
	Restart int             `json:"restart"` // Slurm's restart count
	UID     uint32          `json:"uid"`     // the job's user
	GID     uint32          `json:"gid"`
	Hosts   []string        `json:"hosts"` // in the order of the node list; the index is the NodeID
	Self    metadata.NodeID `json:"self"`
	// Addrs is, for each host, the host:port candidates of its daemon, in the
	// order in which they are tried: a port can be in use.
	Addrs [][]string `json:"addrs"`
	Dirs  Dirs       `json:"dirs"`
	// Capacity is the most bytes of file data kept on this node; 0 is what the disks have.
	Capacity int64 `json:"capacity,omitempty"`
	// Rate is the most bytes a second that this node reads from sources, and
	// ServeRate that it sends others of what they read here; 0 is no bound.
	Rate      int64 `json:"rate,omitempty"`
	ServeRate int64 `json:"serve_rate,omitempty"`
	// VerifyReads is that what is read of datasets on other nodes is compared with
	// what was staged.
	VerifyReads bool `json:"verify_reads,omitempty"`
	// KernelView is whether datasets get kernel views: KernelViewOff, or "" where
	// they can.
	KernelView string `json:"kernel_view,omitempty"`
	// Debug is that the log has a line for every request of the mount.
	Debug    bool          `json:"debug,omitempty"`
	Seed     uint64        `json:"seed"`
	Datasets []DatasetSpec `json:"datasets,omitempty"`
	StageOut []OutSpec     `json:"stage_out,omitempty"`
	// Wait is how long the job's first task waits: "manifest", "all" or "none".
	Wait string `json:"wait,omitempty"`
	// StartTimeout is how long to wait for the other hosts, in seconds; 0 is 60.
	StartTimeout int `json:"start_timeout,omitempty"`
	// Created is when the allocation's prolog began, for the report.
	Created metadata.Time `json:"created,omitempty"`
	// WorkDir is where the job was submitted, for lists that its user should
	// find; "" is that none are written.
	WorkDir string `json:"work_dir,omitempty"`
}

// KernelViewOff is Job.KernelView's no.
const KernelViewOff = "off"

// ParseKernelView reads what a user wrote, auto or off, as Job.KernelView.
func ParseKernelView(v string) (string, error) {
	switch v {
	case "auto":
		return "", nil
	case KernelViewOff:
		return v, nil
	}
	return "", errors.New("want auto or off")
}

// Dirs are a node's directories.
type Dirs struct {
	Store []string `json:"store"` // one for each device; the first also has metadata and Raft
	Run   string   `json:"run"`   // the control socket's directory, 0700
	Mount string   `json:"mount"` // the mountpoint
}

// OutSpec is a directory of scratch to copy out at the end.
type OutSpec struct {
	From string `json:"from"` // relative to scratch/
	To   string `json:"to"`   // absolute path
}

// Validate says what is wrong with o before anything is touched.
func (o OutSpec) Validate() error {
	switch {
	case !filepath.IsAbs(o.To) || strings.ContainsRune(o.To, 0):
		return fmt.Errorf("stage-out to %q: not an absolute path: %w", o.To, syscall.EINVAL)
	case o.From == "" || slices.Contains(strings.Split(o.From, "/"), ".."):
		return fmt.Errorf("stage-out of %q: not a path in scratch: %w", o.From, syscall.EINVAL)
	}
	return nil
}

// CtlSocket is the path of the daemon's control socket.
func (j *Job) CtlSocket() string { return filepath.Join(j.Dirs.Run, "ctl.sock") }

// Name tells this job from every other on the same nodes, also from its own
// earlier start.
func (j *Job) Name() string { return fmt.Sprintf("%s.%d", j.ID, j.Restart) }

func (j *Job) startTimeout() time.Duration {
	if j.StartTimeout <= 0 {
		return time.Minute
	}
	return time.Duration(j.StartTimeout) * time.Second
}

// Validate reports every complaint about j in one error.
func (j *Job) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if j.Version != JobVersion {
		bad("version is %d, this program reads %d", j.Version, JobVersion)
	}
	if j.ID == "" {
		bad("id is empty")
	}
	if len(j.Hosts) == 0 || len(j.Hosts) > metadata.MaxNodes {
		bad("%d hosts, want 1 to %d", len(j.Hosts), metadata.MaxNodes)
	}
	if int(j.Self) >= len(j.Hosts) {
		bad("self is %d of %d hosts", j.Self, len(j.Hosts))
	}
	if len(j.Addrs) != len(j.Hosts) {
		bad("addresses of %d hosts, want %d", len(j.Addrs), len(j.Hosts))
	}
	for i, a := range j.Addrs {
		if len(a) == 0 {
			bad("host %d has no address", i)
		}
	}
	if len(j.Dirs.Store) == 0 || j.Dirs.Run == "" || j.Dirs.Mount == "" {
		bad("dirs: store, run and mount are needed")
	}
	for _, d := range append([]string{j.Dirs.Run, j.Dirs.Mount}, j.Dirs.Store...) {
		if d != "" && !filepath.IsAbs(d) {
			bad("dirs: %q is not absolute", d)
		}
	}
	if j.WorkDir != "" && !filepath.IsAbs(j.WorkDir) {
		bad("work_dir: %q is not absolute", j.WorkDir)
	}
	if j.Capacity < 0 {
		bad("capacity is negative")
	}
	if j.Rate < 0 || j.ServeRate < 0 {
		bad("rate %d, serve_rate %d: a bound is negative", j.Rate, j.ServeRate)
	}
	return errors.Join(append(errs, j.validateData())...)
}

// validateData is the complaints about what goes in and out. A bad one that
// was found only when the job has started would be waited for in vain.
func (j *Job) validateData() error {
	var errs []error
	names := make(map[string]bool)
	for _, s := range j.Datasets {
		errs = append(errs, s.Validate())
		if names[s.Name] {
			errs = append(errs, fmt.Errorf("two datasets are named %q: give one another name as SRC:NAME", s.Name))
		}
		names[s.Name] = true
	}
	for _, o := range j.StageOut {
		errs = append(errs, o.Validate())
	}
	return errors.Join(errs...)
}

// ReadJob reads and validates a job file; an unknown field is an error.
func ReadJob(path string) (*Job, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("job file: %w", err)
	}
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	j := new(Job)
	if err := d.Decode(j); err != nil {
		return nil, fmt.Errorf("job file %s: %w", path, err)
	}
	if err := j.Validate(); err != nil {
		return nil, fmt.Errorf("job file %s: %w", path, err)
	}
	return j, nil
}

// Write writes the job file with mode 0600.
func (j *Job) Write(path string) error {
	b, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return fmt.Errorf("job file: %w", err)
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}
