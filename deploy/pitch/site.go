package pitch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/rails"
	"github.com/bivouacfs/bivouac/datapath/secure"
)

// SitePath is the path of the site's configuration.
const SitePath = "/etc/bivouac/bivouac.yaml"

// Munge is how the job key is transferred from node to node.
type Munge string

// The ways to transfer the job key. MungeAuto uses a key that was submitted with the job, and munge otherwise.
const (
	MungeAuto    Munge = "auto"
	MungeRequire Munge = "require"
	MungeOff     Munge = "off"
)

// Site is the configuration of the administrator. Every key has a default.
type Site struct {
	Store        []string `yaml:"store" json:"store"`                 // one directory for each NVMe device
	Mount        string   `yaml:"mount" json:"mount"`                 // holds the mountpoints
	Run          string   `yaml:"run" json:"run"`                     // holds the jobs' states and sockets
	Log          string   `yaml:"log" json:"log"`                     // holds <jobid>.log
	Port         int      `yaml:"port" json:"port"`                   // the first port of the range
	Ports        int      `yaml:"ports" json:"ports"`                 // how many
	StartTimeout Seconds  `yaml:"start_timeout" json:"start_timeout"` // of the prolog; must be below Slurm's PrologEpilogTimeout
	// EpilogTimeout is how long the end of a job may take; 0 is 300 s if the job stages out, else 20 s.
	// PrologEpilogTimeout bounds it, too.
	EpilogTimeout Seconds `yaml:"epilog_timeout" json:"epilog_timeout"`
	Munge         Munge   `yaml:"munge" json:"munge"`
	MungeSocket   string  `yaml:"munge_socket" json:"munge_socket"` // "" is munge's own default
	// FailureTimeout is the silence after which a node is given up. The watchdog and other timeouts derive from it;
	// job.MaxFailureTimeout is below Slurm's UnkillableStepTimeout.
	FailureTimeout Seconds `yaml:"failure_timeout" json:"failure_timeout"`
	Memory         Size    `yaml:"memory" json:"memory"` // a daemon's cgroup bound; 0 is none
	// Scratch is how much of a node's capacity datasets must leave to scratch: a size or a percentage.
	Scratch string `yaml:"scratch" json:"scratch"`
	// Keep is how long the datasets of a job stay on its nodes for the next job of the same user; 0: they are removed.
	Keep Seconds `yaml:"keep" json:"keep"`
	// KernelView is auto or off: whether datasets may have kernel views.
	KernelView string `yaml:"kernel_view" json:"kernel_view"`
	// MetricsTextfile is the directory of node_exporter's textfile collector; "": none.
	MetricsTextfile string `yaml:"metrics_textfile" json:"metrics_textfile"`
	LogFormat       string `yaml:"log_format" json:"log_format"` // text or json
	// Network lists the networks that daemons use, by CIDR or interface; empty: all.
	Network []string `yaml:"network" json:"network"`
	// Encrypt (tls) and Auth (frames) protect the connections of all jobs; a job can ask for more.
	Encrypt string `yaml:"encrypt" json:"encrypt"`
	Auth    string `yaml:"auth" json:"auth"`
}

// DefaultSite returns the configuration of a site without a configuration file.
func DefaultSite() Site {
	return Site{
		Store: []string{"/var/lib/bivouac"}, Mount: "/mnt/bivouac", Run: "/run/bivouac", Log: "/var/log/bivouac",
		Port: 18500, Ports: 4000, StartTimeout: Seconds(time.Minute), Munge: MungeAuto,
		FailureTimeout: Seconds(job.DefaultFailureTimeout), KernelView: "auto", Network: []string{}, LogFormat: job.LogText,
	}
}

// LoadSite reads the configuration at path; a missing file means the defaults. With an error it returns the defaults,
// too, so that an epilog can still clean up.
func LoadSite(path string) (Site, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return DefaultSite(), nil
	}
	if err != nil {
		return DefaultSite(), fmt.Errorf("site configuration: %w", err)
	}
	s, err := ParseSite(b)
	if err != nil {
		return DefaultSite(), fmt.Errorf("site configuration %s: %w", path, err)
	}
	return s, nil
}

// plain replaces the decoder's messages, which name Go types, with messages for administrators.
var plain = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`^yaml: (?:unmarshal errors:\n  )?`), ""},
	{regexp.MustCompile(`field (\S+) not found in type \S+`), "unknown key ${1}: bivouac config show lists all keys"},
	{regexp.MustCompile("cannot unmarshal !!\\w+(?: `(.*)`)? into \\[\\]string"), "${1} is not a list, such as [a, b]"},
	{regexp.MustCompile("cannot unmarshal !!\\w+(?: `(.*)`)? into int"), "${1} is not a whole number"},
}

// ParseSite parses a configuration. An unknown key is an error.
func ParseSite(b []byte) (Site, error) {
	s := DefaultSite()
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&s); err != nil && !errors.Is(err, io.EOF) {
		text := err.Error()
		for _, p := range plain {
			text = p.from.ReplaceAllString(text, p.to)
		}
		return Site{}, errors.New(text)
	}
	if err := s.validate(); err != nil {
		return Site{}, err
	}
	return s, nil
}

// maxRun bounds the path run, because socket paths below it have 107 bytes at most.
const maxRun = 80

func (s *Site) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(s.Store) == 0 || len(s.Store) > 64 {
		bad("store: %d directories, want 1 to 64", len(s.Store))
	}
	dirs := append([]string{s.Mount, s.Run, s.Log}, s.Store...)
	for i, d := range dirs {
		if !filepath.IsAbs(d) || filepath.Clean(d) != d || d == "/" {
			bad("%q is not the absolute path of a directory, without .. and a final /", d)
		}
		if slices.Contains(dirs[:i], d) {
			bad("%s is named twice", d)
		}
	}
	if len(s.Run) > maxRun {
		bad("run: %q is longer than %d bytes", s.Run, maxRun)
	}
	if s.Port < 1024 || s.Ports < 64 || s.Port+s.Ports > math.MaxUint16+1 {
		bad("port, ports: %d and %d, want 64 ports or more between 1024 and 65535", s.Port, s.Ports)
	}
	for _, t := range []struct {
		key      string
		v        Seconds
		min, max time.Duration
	}{
		{"start_timeout", s.StartTimeout, time.Second, time.Hour},
		{"epilog_timeout", s.EpilogTimeout, 0, 24 * time.Hour},
		{"keep", s.Keep, 0, 30 * 24 * time.Hour},
		{"failure_timeout", s.FailureTimeout, job.MinFailureTimeout, job.MaxFailureTimeout},
	} {
		if d := time.Duration(t.v); d < t.min || d > t.max {
			bad("%s: %v, want %v to %v", t.key, d, t.min, t.max)
		}
	}
	if !slices.Contains([]Munge{MungeAuto, MungeRequire, MungeOff}, s.Munge) {
		bad("munge: %q, want auto, require or off", s.Munge)
	}
	if s.Memory != 0 && s.Memory < 256<<20 {
		bad("memory: %d bytes is too little for a daemon, want 256M or more", s.Memory)
	}
	if _, err := job.ParseReserve(s.Scratch, ParseSize); err != nil {
		bad("scratch: %q, %w", s.Scratch, err)
	}
	if _, err := job.ParseKernelView(s.KernelView); err != nil {
		bad("kernel_view: %q, %w", s.KernelView, err)
	}
	if d := s.MetricsTextfile; d != "" && (!filepath.IsAbs(d) || filepath.Clean(d) != d || d == "/") {
		bad("metrics_textfile: %q is not the absolute path of a directory, without .. and a final /", d)
	}
	if !slices.Contains([]string{"", job.LogText, job.LogJSON}, s.LogFormat) { // "" in records of earlier versions
		bad("log_format: %q, want text or json", s.LogFormat)
	}
	if err := rails.Check(s.Network); err != nil {
		bad("network: %w", err)
	}
	if _, err := secure.Parse(s.Encrypt, s.Auth); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// LeaveTime returns how long the end of a job may take.
func (s *Site) LeaveTime(stageOut bool) time.Duration {
	switch {
	case s.EpilogTimeout > 0:
		return time.Duration(s.EpilogTimeout)
	case stageOut:
		return 300 * time.Second
	}
	return 20 * time.Second
}

// Seconds is a duration, written as a number of seconds or as "1m30s".
type Seconds time.Duration

// UnmarshalYAML reads either form.
func (s *Seconds) UnmarshalYAML(n *yaml.Node) error {
	d, err := ParseTime(n.Value)
	*s = Seconds(d)
	return inLine(n, err)
}

// MarshalYAML writes what UnmarshalYAML reads.
func (s Seconds) MarshalYAML() (any, error) { return time.Duration(s).String(), nil }

// ParseTime reads a number of seconds, or a time such as 1m30s.
func ParseTime(v string) (time.Duration, error) {
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, fmt.Errorf("%q is not a time: write seconds, or 1m30s", v)
	}
	return d, nil
}

// inLine adds the line in the file to the error of a value.
func inLine(n *yaml.Node, err error) error {
	if err != nil {
		err = fmt.Errorf("line %d: %w", n.Line, err)
	}
	return err
}

// Size is a number of bytes, written with K, M, G or T (powers of 1024) or without.
type Size int64

// UnmarshalYAML reads "512M".
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	v, err := ParseSize(n.Value)
	*s = Size(v)
	return inLine(n, err)
}

// ParseSize parses a number of bytes, such as "400G"; an empty text is 0.
func ParseSize(v string) (int64, error) {
	if v == "" {
		return 0, nil
	}
	num, shift := strings.TrimSuffix(v, "iB"), 0
	if len(num) > 0 {
		if i := strings.IndexByte("KMGT", num[len(num)-1]&^0x20); i >= 0 {
			num, shift = num[:len(num)-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(num, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is not a size: write a whole number of bytes, or one with K, M, G or T", v)
	}
	return n << shift, nil
}
