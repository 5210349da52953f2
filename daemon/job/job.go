package job

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

	"github.com/bivouacfs/bivouac/datapath/rails"
	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/metadata"
)

// Version is the version of the job file that this program writes and reads.
const Version = 1

// File is the content of a job file.
type File struct {
	Version int             `json:"version"`
	ID      string          `json:"id"`      // Slurm's job ID, or the name that bivouac up made
	Restart int             `json:"restart"` // Slurm's restart count
	UID     uint32          `json:"uid"`     // the job's user
	GID     uint32          `json:"gid"`
	Hosts   []string        `json:"hosts"` // in the order of the node list; the index is the NodeID
	Self    metadata.NodeID `json:"self"`
	// Addrs has, for each host, the host:port candidates of its daemon in the order in which they are tried: a port may
	// be in use.
	Addrs [][]string `json:"addrs"`
	// Switch is the leaf switch of this node; "": unknown.
	Switch string `json:"switch,omitempty"`
	Dirs   Dirs   `json:"dirs"`
	// Capacity limits the bytes of file data on this node; 0 means the whole capacity of the disks.
	Capacity int64 `json:"capacity,omitempty"`
	// Scratch is the share of the capacity that datasets leave to scratch.
	Scratch Reserve `json:"scratch,omitzero"`
	// Rate limits the bytes per second that this node reads from sources; ServeRate limits the bytes per second that it
	// serves to other nodes. 0 means no limit.
	Rate      int64 `json:"rate,omitempty"`
	ServeRate int64 `json:"serve_rate,omitempty"`
	// Ahead bounds the bytes that this node prefetches of a dataset; 0 means a share of its memory, AheadOff no
	// prefetch.
	Ahead int64 `json:"ahead,omitempty"`
	// VerifyReads compares dataset reads from other nodes with the checksums taken when
	// the data was staged.
	VerifyReads bool `json:"verify_reads,omitempty"`
	// Scrub limits the bytes per second that this node's scrub of datasets reads; 0 means 32 MiB, a negative value no
	// scrub.
	Scrub int64 `json:"scrub,omitempty"`
	// Network lists the networks that daemons use, by CIDR or interface; empty means all.
	Network []string `json:"network,omitempty"`
	// Protect is how the connections between daemons are protected.
	Protect secure.Mode `json:"protect,omitzero"`
	// NoChecksums disables the checksums of scratch data.
	NoChecksums bool `json:"no_checksums,omitempty"`
	// Keep keeps the datasets of this node for the next job when the daemon stops.
	Keep bool `json:"keep,omitempty"`
	// KernelView is KernelViewOff, or "" for a kernel view wherever the node supports one.
	KernelView string `json:"kernel_view,omitempty"`
	// LogFormat is LogText or LogJSON; "" is LogText.
	LogFormat string `json:"log_format,omitempty"`
	// Debug logs every request of the mount.
	Debug    bool       `json:"debug,omitempty"`
	Seed     uint64     `json:"seed"`
	Datasets []Dataset  `json:"datasets,omitempty"`
	StageOut []StageOut `json:"stage_out,omitempty"`
	// Wait says what the job's first task waits for: "manifest", "all" or "none".
	Wait string `json:"wait,omitempty"`
	// FailureTimeout is the silence in seconds after which a node is given up; 0 means 15.
	FailureTimeout int `json:"failure_timeout,omitempty"`
	// StartTimeout is the time to wait for the other hosts, in seconds; 0 means 60.
	StartTimeout int `json:"start_timeout,omitempty"`
	// Created is when the allocation's prolog began, for the report.
	Created metadata.Time `json:"created,omitempty"`
	// WorkDir is the directory from which the job was submitted. Lists for the user are written there; "" means that no
	// lists are written.
	WorkDir string `json:"work_dir,omitempty"`
}

// The formats of a job's log.
const (
	LogText = "text"
	LogJSON = "json" // one object per line
)

// AheadOff as File.Ahead disables prefetch.
const AheadOff = -1

// ParseAhead converts the user's size into File.Ahead; 0 disables prefetch, an empty text is the default.
func ParseAhead(v string, size func(string) (int64, error)) (int64, error) {
	if v == "" {
		return 0, nil
	}
	n, err := size(v)
	switch {
	case err != nil:
		return 0, err
	case n == 0:
		return AheadOff, nil
	case n < 1<<20:
		return 0, errors.New("want 0, or 1M or more, on each node")
	}
	return n, nil
}

// KernelViewOff as File.KernelView disables kernel views.
const KernelViewOff = "off"

// ParseKernelView converts the user's word, auto or off, into File.KernelView.
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
	Store []string `json:"store"` // one per device; the first also holds metadata and Raft
	Run   string   `json:"run"`   // the control socket's directory, 0700
	Mount string   `json:"mount"` // the mountpoint
}

// StageOut is a directory of scratch to copy out at the end.
type StageOut struct {
	From string `json:"from"` // relative to scratch/
	To   string `json:"to"`   // absolute path
}

// Validate reports all errors in o.
func (o StageOut) Validate() error {
	switch {
	case !filepath.IsAbs(o.To) || strings.ContainsRune(o.To, 0):
		return fmt.Errorf("stage-out to %q: not an absolute path: %w", o.To, syscall.EINVAL)
	case o.From == "" || slices.Contains(strings.Split(o.From, "/"), ".."):
		return fmt.Errorf("stage-out of %q: not a path in scratch: %w", o.From, syscall.EINVAL)
	}
	return nil
}

// CtlSocket returns the path of the daemon's control socket.
func (j *File) CtlSocket() string { return filepath.Join(j.Dirs.Run, "ctl.sock") }

// Name is unique among the jobs on the same nodes, including earlier starts of this job.
func (j *File) Name() string { return fmt.Sprintf("%s.%d", j.ID, j.Restart) }

// StartLimit returns StartTimeout with its default.
func (j *File) StartLimit() time.Duration {
	if j.StartTimeout <= 0 {
		return time.Minute
	}
	return time.Duration(j.StartTimeout) * time.Second
}

// Validate reports all errors in j as one error.
func (j *File) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if j.Version != Version {
		bad("version is %d, this program reads %d", j.Version, Version)
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
	if err := rails.Check(j.Network); err != nil {
		bad("network: %w", err)
	}
	if j.Capacity < 0 {
		bad("capacity is negative")
	}
	if s := j.Scratch; s.Bytes < 0 || s.Percent < 0 || s.Percent > 90 {
		bad("scratch is %v, want a size or 0%% to 90%%", s)
	}
	if j.Rate < 0 || j.ServeRate < 0 {
		bad("rate %d, serve_rate %d: a limit is negative", j.Rate, j.ServeRate)
	}
	return errors.Join(append(errs, j.validateData())...)
}

// validateData checks datasets and stage-outs, so that a job does not start only to wait for a dataset that cannot be
// staged.
func (j *File) validateData() error {
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

// Read reads and validates a job file. An unknown field is an error.
func Read(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("job file: %w", err)
	}
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	j := new(File)
	if err := d.Decode(j); err != nil {
		return nil, fmt.Errorf("job file %s: %w", path, err)
	}
	if err := j.Validate(); err != nil {
		return nil, fmt.Errorf("job file %s: %w", path, err)
	}
	return j, nil
}

// Write writes the job file with mode 0600.
func (j *File) Write(path string) error {
	b, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return fmt.Errorf("job file: %w", err)
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}
