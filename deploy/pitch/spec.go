package pitch

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/rails"
	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/metadata"
)

// SpecVersion is the version of the spec that this program writes and reads.
const SpecVersion = 1

const (
	maxSpec  = 64 << 10 // bytes of an encoded spec
	maxItems = 64       // of stage-in and of stage-out, each
	maxPath  = 4095
	// maxCapacity leaves room for sums over nodes.
	maxCapacity = 1 << 60
)

// Spec is the user's request. It travels from the submission to the prologs. Users can forge
// it on the way, so both ends validate it.
type Spec struct {
	V        int               `json:"v"`
	StageIn  []job.Dataset     `json:"stage_in,omitempty"`
	StageOut []job.StageOut    `json:"stage_out,omitempty"`
	Opts     map[string]string `json:"opts,omitempty"`
}

// Encode returns the spec as one word for an environment variable.
func (s *Spec) Encode() (string, error) {
	if err := s.validate(); err != nil {
		return "", err
	}
	b, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	w := base64.RawURLEncoding.EncodeToString(b)
	if len(w) > maxSpec {
		return "", fmt.Errorf("the options are too long: %d bytes, at most %d", len(w), maxSpec)
	}
	return w, nil
}

// DecodeSpec decodes and validates a spec.
func DecodeSpec(w string) (Spec, error) {
	if len(w) > maxSpec {
		return Spec{}, fmt.Errorf("the job's bivouac options are too long: %d bytes, at most %d", len(w), maxSpec)
	}
	b, err := base64.RawURLEncoding.DecodeString(w)
	if err != nil {
		return Spec{}, fmt.Errorf("the job's bivouac options are damaged: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var s Spec
	if err := d.Decode(&s); err != nil {
		return Spec{}, fmt.Errorf("the job's bivouac options are damaged: %w", err)
	}
	if d.More() {
		return Spec{}, errors.New("the job's bivouac options are damaged: trailing data")
	}
	if err := s.validate(); err != nil {
		return Spec{}, fmt.Errorf("invalid bivouac options: %w", err)
	}
	return s, nil
}

// validate reports every error that can be found without accessing files.
func (s *Spec) validate() error {
	var errs []error
	if s.V != SpecVersion {
		errs = append(errs, fmt.Errorf("version %d, but this node reads %d: install the same bivouac version on submission host and nodes", s.V, SpecVersion))
	}
	if len(s.StageIn) > maxItems || len(s.StageOut) > maxItems {
		errs = append(errs, fmt.Errorf("more than %d stage-in or stage-out options", maxItems))
		return errors.Join(errs...)
	}
	for i, d := range s.StageIn {
		errs = append(errs, checkPath("stage-in", d.Source), checkName(d.Name), d.Options.Validate())
		if slices.ContainsFunc(s.StageIn[:i], func(o job.Dataset) bool { return o.Name == d.Name }) {
			errs = append(errs, fmt.Errorf("stage-in: two sources have the name %q: write SRC:NAME", d.Name))
		}
	}
	for i, o := range s.StageOut {
		errs = append(errs, checkFrom(o.From), checkPath("stage-out", o.To))
		if slices.ContainsFunc(s.StageOut[:i], func(p job.StageOut) bool { return p.To == o.To }) {
			errs = append(errs, fmt.Errorf("stage-out: two options have the target %q: choose another for %q", o.To, o.From))
		}
	}
	for _, k := range sortedKeys(s.Opts) {
		errs = append(errs, checkOption(k, s.Opts[k]))
	}
	return errors.Join(errs...)
}

// checkText refuses text that is unsafe in a log line or a path.
func checkText(what, v string, limit int) error {
	switch {
	case v == "":
		return fmt.Errorf("%s is empty", what)
	case len(v) > limit:
		return fmt.Errorf("%s is longer than %d bytes: %.40q", what, limit, v)
	case !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl):
		return fmt.Errorf("%s %.80q has unprintable characters", what, v)
	}
	return nil
}

func checkPath(what, p string) error {
	if err := checkText(what+" path", p, maxPath); err != nil {
		return err
	}
	if !filepath.IsAbs(p) || filepath.Clean(p) != p {
		return fmt.Errorf("%s: %q is not a clean absolute path", what, p)
	}
	return nil
}

func checkName(n string) error {
	if err := checkText("stage-in name", n, metadata.MaxName); err != nil {
		return err
	}
	if n == "." || n == ".." || strings.ContainsRune(n, '/') {
		return fmt.Errorf("stage-in: %q cannot be a directory's name under data/", n)
	}
	return nil
}

func checkFrom(f string) error {
	if err := checkText("stage-out directory", f, maxPath); err != nil {
		return err
	}
	if path.IsAbs(f) || path.Clean(f) != f || f == ".." || strings.HasPrefix(f, "../") {
		return fmt.Errorf("stage-out: %q is not a path below scratch: write FROM:TO, FROM relative, with no parent directories", f)
	}
	return nil
}

// knownOptions are the keys of opts, each with the check of its value.
var knownOptions = map[string]func(string) error{
	"wait": func(v string) error {
		if v != "manifest" && v != "all" && v != "none" {
			return errors.New("want manifest, all or none")
		}
		return nil
	},
	"capacity": perNode("on each node"),
	"scratch": func(v string) error {
		_, err := job.ParseReserve(v, ParseSize)
		return err
	},
	"rate":       perNode("a second, on each node"),
	"serve-rate": perNode("a second, on each node"),
	"ahead": func(v string) error {
		_, err := job.ParseAhead(v, ParseSize)
		return err
	},
	"verify": only("reads"),
	"log":    only("debug"),
	"network": func(v string) error {
		if v == "" {
			return errors.New("want an interface or a CIDR")
		}
		_, err := rails.Parse(v)
		return err
	},
	"encrypt": only("tls"),
	"auth":    only("frames"),
	"kernel-view": func(v string) error {
		_, err := job.ParseKernelView(v)
		return err
	},
	"seed": func(v string) error {
		_, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return errors.New("want a number from 0 to 18446744073709551615")
		}
		return nil
	},
	"scrub": func(v string) error {
		if v == "off" {
			return nil
		}
		return perNode("a second, on each node, or off")(v)
	},
	"checksums": func(v string) error {
		if v != "on" && v != "off" {
			return errors.New("want on or off")
		}
		return nil
	},
	"failure-timeout": func(v string) error {
		d, err := ParseTime(v)
		if err == nil {
			err = job.CheckFailureTimeout(d)
		}
		return err
	},
	"start-timeout": func(v string) error {
		d, err := ParseTime(v)
		if err == nil && (d < time.Second || d > time.Hour) {
			err = errors.New("want 1 s to 1 h")
		}
		return err
	},
}

// perNode returns a check for a number of bytes; what completes the error.
func perNode(what string) func(v string) error {
	return func(v string) error {
		n, err := ParseSize(v)
		if err == nil && (n < 1<<20 || n > maxCapacity) {
			err = fmt.Errorf("want 1M or more, %s", what)
		}
		return err
	}
}

func checkOption(k, v string) error {
	check, ok := knownOptions[k]
	if !ok {
		return fmt.Errorf("opts: unknown key %.80q: known keys are %s", k, strings.Join(sortedKeys(knownOptions), ", "))
	}
	if err := check(v); err != nil {
		return fmt.Errorf("opts: %s=%.80q: %w", k, v, err)
	}
	return nil
}

// only returns a check that accepts one value.
func only(want string) func(string) error {
	return func(v string) error {
		if v != want {
			return fmt.Errorf("want %s", want)
		}
		return nil
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Wait returns the event that the job's first task waits for.
func (s *Spec) Wait() string {
	if w := s.Opts["wait"]; w != "" {
		return w
	}
	return "manifest"
}

// Capacity returns the bound of file data on each node, in bytes; 0: the space of the disks.
func (s *Spec) Capacity() int64 { return s.size("capacity") }

// Scratch returns how much of each node's capacity datasets leave to scratch: the user's setting, else the site's.
func (s *Spec) Scratch(site Site) job.Reserve {
	v := cmp.Or(s.Opts["scratch"], site.Scratch)
	r, err := job.ParseReserve(v, ParseSize)
	if err != nil { // validate has checked both
		return job.DefaultReserve
	}
	return r
}

// Ahead returns job.File.Ahead.
func (s *Spec) Ahead() int64 {
	n, err := job.ParseAhead(s.Opts["ahead"], ParseSize)
	if err != nil { // validate has checked it
		return 0
	}
	return n
}

// Rate returns the bound of each node's reads from sources, in bytes per second; 0: no bound.
func (s *Spec) Rate() int64 { return s.size("rate") }

// ServeRate returns the bound of what each node sends to readers on other nodes, in bytes per second; 0: no bound.
func (s *Spec) ServeRate() int64 { return s.size("serve-rate") }

// VerifyReads reports whether remote reads of datasets are checked against the checksums.
func (s *Spec) VerifyReads() bool { return s.Opts["verify"] == "reads" }

// KernelView returns the mode of kernel views, which a site can disable.
func (s *Spec) KernelView(site Site) string {
	if site.KernelView == job.KernelViewOff {
		return job.KernelViewOff
	}
	v, _ := job.ParseKernelView(s.Opts["kernel-view"]) // validate has checked it
	return v
}

// Network returns the networks that daemons use: the user's, else the site's.
func (s *Spec) Network(site Site) []string {
	if own, err := rails.Parse(s.Opts["network"]); err == nil && len(own) > 0 {
		return own
	}
	return site.Network
}

// Protect returns the protection of the job's connections: what the site demands, or better.
func (s *Spec) Protect(site Site) secure.Mode {
	all, _ := secure.Parse(site.Encrypt, site.Auth) // validate has checked both
	own, _ := secure.Parse(s.Opts["encrypt"], s.Opts["auth"])
	return max(all, own)
}

// Debug reports whether every request of the mount is logged.
func (s *Spec) Debug() bool { return s.Opts["log"] == "debug" }

func (s *Spec) size(key string) int64 {
	n, err := ParseSize(s.Opts[key])
	if err != nil {
		return 0
	}
	return n
}

// Seed returns the seed of placement, if the user chose one.
func (s *Spec) Seed() (uint64, bool) {
	n, err := strconv.ParseUint(s.Opts["seed"], 10, 64)
	return n, err == nil
}

// startTimeout returns the site's start timeout, or the user's if that is shorter. A longer one is impossible: Slurm's
// PrologTimeout fits the site's.
func (s *Spec) startTimeout(site Site) time.Duration {
	t := time.Duration(site.StartTimeout)
	if d, err := ParseTime(s.Opts["start-timeout"]); err == nil {
		t = min(t, d)
	}
	return t
}

// failureTimeout returns the user's failure timeout, else the site's, in seconds.
func (s *Spec) failureTimeout(site Site) int {
	t := time.Duration(site.FailureTimeout)
	if d, err := ParseTime(s.Opts["failure-timeout"]); err == nil {
		t = d
	}
	return int(t / time.Second)
}

// NoChecksums reports whether the checksums of scratch are disabled.
func (s *Spec) NoChecksums() bool { return s.Opts["checksums"] == "off" }

// Scrub returns the bound of the reads of the scrub, in bytes per second; 0: the default, -1: no scrub.
func (s *Spec) Scrub() int64 {
	if s.Opts["scrub"] == "off" {
		return -1
	}
	return s.size("scrub")
}
