package doctor

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// State is the result of a check.
type State string

// The states, from good to bad.
const (
	OK      State = "ok"
	Skipped State = "skipped" // it does not apply here, or cannot be checked by this user
	Warning State = "warning" // Bivouac works, but slower or with fewer features
	Failed  State = "failed"  // jobs will fail
)

// Finding is the result of a check.
type Finding struct {
	Check  string `json:"check"`
	State  State  `json:"state"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // unless OK
}

// Host is the machine that is checked.
type Host interface {
	// Read reads a file.
	Read(path string) ([]byte, error)
	// Run runs a program and returns its output.
	Run(ctx context.Context, name string, args ...string) (string, error)
	// Root reports whether this is root.
	Root() bool
	// OpenFuse opens /dev/fuse for a moment.
	OpenFuse() error
	// Store inspects a directory of the store, and measures it if probe is not 0.
	Store(dir string, probe time.Duration) (Drive, error)
	// Dial connects to a port of another host.
	Dial(ctx context.Context, addr string) error
	// Synchronized reports whether the clock is synchronized by a time server.
	Synchronized() (bool, error)
	// Glob returns the paths that match a pattern.
	Glob(pattern string) []string
	// Networks reports the networks, interfaces or CIDRs, on which this machine has no address.
	Networks([]string) error
}

// Drive is a directory of the store with its filesystem.
type Drive struct {
	Mode        fs.FileMode // of the directory
	Owner       uint32
	Kind        string // of the filesystem
	Network     bool
	Free        int64 // bytes
	NoInodes    bool
	Write, Read float64 // bytes per second; 0: not measured
}

// Config has the settings of the site that the checks depend on.
type Config struct {
	Host           Host
	Path           string   // of the site's configuration
	Store          []string // the site's directories
	Mount          string   // the site's
	Run, Log       string   // the site's
	Port, Ports    int      // the site's range
	Munge          string   // the site's munge: auto, require or off
	MungeSocket    string   // the site's
	StartTimeout   time.Duration
	EpilogTimeout  time.Duration // of a job with stage-out
	FailureTimeout time.Duration
	Memory         int64         // the site's limit of a daemon; 0: none
	Network        []string      // the site's networks
	Textfile       string        // the site's metrics_textfile
	Submit         bool          // this is a submit host, which runs no jobs
	Peer           string        // another node; "": none
	Probe          time.Duration // time for measuring the store's speed; 0: not measured
}

// Run makes all checks.
func Run(ctx context.Context, cfg Config) []Finding {
	d := &doctor{cfg: cfg, h: cfg.Host}
	if !cfg.Submit {
		d.kernel()
		d.fuse(ctx)
		d.store()
	}
	d.munge(ctx)
	d.slurm(ctx)
	if !cfg.Submit {
		d.security()
		d.networks()
		d.network(ctx)
		d.textfile()
	}
	d.clock()
	return d.all
}

// Worst returns the worst state of all findings.
func Worst(all []Finding) State {
	order := []State{Skipped, OK, Warning, Failed}
	worst := Skipped
	for _, f := range all {
		if slices.Index(order, f.State) > slices.Index(order, worst) {
			worst = f.State
		}
	}
	return worst
}

// Write writes the findings as a table, each remedy below its finding.
func Write(w io.Writer, all []Finding) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, f := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.State, f.Check, f.Found)
		if f.Remedy != "" {
			fmt.Fprintf(t, "\t\t→ %s\n", f.Remedy)
		}
	}
	return t.Flush()
}

// doctor is one run of all checks.
type doctor struct {
	cfg Config
	h   Host
	all []Finding
}

func (d *doctor) add(check string, s State, remedy, format string, args ...any) {
	if s == OK {
		remedy = ""
	}
	d.all = append(d.all, Finding{check, s, fmt.Sprintf(format, args...), remedy})
}

// text returns a file without its last newline; "" if it cannot be read.
func (d *doctor) text(path string) string {
	b, _ := d.h.Read(path) // a missing file is empty
	return strings.TrimSpace(string(b))
}

// unless returns OK if good, else bad.
func unless(good bool, bad State) State {
	if good {
		return OK
	}
	return bad
}
