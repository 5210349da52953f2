package stagein

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Options controls how a source is staged. It is encoded as JSON on its way to the daemon.
type Options struct {
	Unpack   Unpack        `json:"unpack,omitempty"`
	List     source.Name   `json:"list,omitempty"`    // absolute path of a file that lists the wanted paths
	Include  []source.Name `json:"include,omitempty"` // patterns of wanted paths
	Exclude  []source.Name `json:"exclude,omitempty"` // patterns of paths to leave out
	Limit    int64         `json:"limit,omitempty"`   // largest number of files; 0: no limit
	OnError  OnError       `json:"on_error,omitempty"`
	Overflow Overflow      `json:"overflow,omitempty"`
	Fill     Order         `json:"order,omitzero"` // of the fetches after the manifest is published
	// Replicas are made when the dataset is ready.
	Replicas cluster.Replicas `json:"replicas,omitempty"`
	Index    Index            `json:"index,omitempty"`
	Cache    source.Name      `json:"cache,omitempty"` // absolute path of the user's cache directory for indexes; "": none
}

// Unpack determines how archives are staged.
type Unpack string

// Ways to stage archives.
const (
	UnpackYes   Unpack = ""      // their members are the dataset
	UnpackNo    Unpack = "no"    // they are files of the dataset
	UnpackApart Unpack = "apart" // the members of each are in a directory named after it

	UnpackNested Unpack = "nested" // the same for each tar that is a member of a tar
)

// OnError determines how unreadable entries affect a dataset.
type OnError string

// Values of OnError.
const (
	OnErrorFail OnError = ""     // the stage-in fails
	OnErrorSkip OnError = "skip" // unreadable entries are left out, counted and listed
)

// optionKeys maps the options of a spec to the functions that set them.
var optionKeys = map[string]func(o *Options, v string) error{
	"unpack": func(o *Options, v string) error {
		if v == "yes" {
			v = ""
		}
		o.Unpack = Unpack(v)
		return o.Unpack.check()
	},
	"list": func(o *Options, v string) error {
		o.List = source.Name(v)
		return nil
	},
	"include": func(o *Options, v string) error { o.Include = append(o.Include, source.Name(v)); return nil },
	"exclude": func(o *Options, v string) error { o.Exclude = append(o.Exclude, source.Name(v)); return nil },
	"limit": func(o *Options, v string) (err error) {
		if o.Limit, err = strconv.ParseInt(v, 10, 64); err != nil || o.Limit < 1 {
			err = fmt.Errorf("want a number of files, 1 or more: %w", syscall.EINVAL)
		}
		return err
	},
	"overflow": func(o *Options, v string) error {
		if v == "source" {
			v = ""
		}
		o.Overflow = Overflow(v)
		return o.Overflow.check()
	},
	"index": func(o *Options, v string) error {
		if v == "auto" {
			v = ""
		}
		if o.Index = Index(v); strings.Contains(v, "/") {
			return nil // checked when it is absolute
		}
		return o.Index.check()
	},
	"order":     nil, // parseOrderKeys
	"ranks":     nil,
	"epochs":    nil,
	"root":      nil,
	"drop-last": nil,
	"replicas": func(o *Options, v string) (err error) {
		o.Replicas, err = cluster.ParseReplicas(v)
		return err
	},
	"on-error": func(o *Options, v string) error {
		if v == "fail" {
			v = ""
		}
		o.OnError = OnError(v)
		return o.OnError.check()
	},
}

// repeatable lists the options that may occur more than once.
var repeatable = []string{"include", "exclude"}

func (u Unpack) check() error {
	if !slices.Contains([]Unpack{UnpackYes, UnpackNo, UnpackApart, UnpackNested}, u) {
		return fmt.Errorf("want yes, no, apart or nested: %w", syscall.EINVAL)
	}
	return nil
}

func (e OnError) check() error {
	if e != OnErrorFail && e != OnErrorSkip {
		return fmt.Errorf("want fail or skip: %w", syscall.EINVAL)
	}
	return nil
}

// parseOptions parses KEY=VALUE,… A comma in a value is doubled.
func parseOptions(s string) (Options, error) {
	var o Options
	seen := make(map[string]bool)
	order := make(map[string]string)
	for _, kv := range splitCommas(s) {
		k, v, ok := strings.Cut(kv, "=")
		set, known := optionKeys[k]
		switch {
		case !ok:
			return o, fmt.Errorf("%q is not KEY=VALUE: write a comma inside a value twice: %w", kv, syscall.EINVAL)
		case !known:
			return o, fmt.Errorf("option %q is not known (known are %s): write a comma that is part of a path as two: %w", k, knownOptions(), syscall.EINVAL)
		case seen[k] && !slices.Contains(repeatable, k):
			return o, fmt.Errorf("option %s is given twice: %w", k, syscall.EINVAL)
		case v == "":
			return o, fmt.Errorf("option %s has no value: %w", k, syscall.EINVAL)
		}
		seen[k] = true
		if set == nil {
			order[k] = v
		} else if err := set(&o, v); err != nil {
			return o, fmt.Errorf("option %s=%s: %w", k, v, err)
		}
	}
	return o, o.parseOrderKeys(order)
}

// parseOrderKeys parses order= with the keys that belong to it.
func (o *Options) parseOrderKeys(m map[string]string) (err error) {
	text := m["order"]
	for _, k := range []string{"ranks", "epochs", "root"} {
		if v := m[k]; v != "" {
			text += "," + k + "=" + v
		}
	}
	switch m["drop-last"] {
	case "", "no":
	case "yes":
		text += ",drop_last"
	default:
		return fmt.Errorf("option drop-last=%s: want yes or no: %w", m["drop-last"], syscall.EINVAL)
	}
	if strings.HasPrefix(text, ",") || strings.HasPrefix(text, OrderList+":") && text != m["order"] {
		return fmt.Errorf("options ranks, epochs, root and drop-last are for order=seed:S, random:S and loader:S: give one of these: %w", syscall.EINVAL)
	}
	if o.Fill, err = ParseOrder(text); err != nil {
		return err
	}
	return nil
}

func knownOptions() string {
	var ks []string
	for k := range optionKeys {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return strings.Join(ks, ", ")
}

// splitCommas splits at single commas; a doubled comma is a literal one.
func splitCommas(s string) []string {
	var parts []string
	var at strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != ',':
			at.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == ',':
			at.WriteByte(',')
			i++
		default:
			parts = append(parts, at.String())
			at.Reset()
		}
	}
	return append(parts, at.String())
}

// cutOptions cuts a spec before its first option: a single comma followed by KEY=. A doubled comma before KEY= is a
// literal comma in the path.
func cutOptions(s string) (src, opts string, some bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != ',' {
			b.WriteByte(s[i])
			continue
		}
		run := 1
		for i+run < len(s) && s[i+run] == ',' {
			run++
		}
		if !isOption(s[i+run:]) {
			b.WriteString(s[i : i+run])
		} else if b.WriteString(s[i : i+run/2]); run%2 == 1 {
			return b.String(), s[i+run:], true
		}
		i += run - 1
	}
	return b.String(), "", false
}

// isOption reports whether s begins with KEY=.
func isOption(s string) bool {
	k, _, ok := strings.Cut(s, "=")
	return ok && k != "" && strings.Trim(k, "abcdefghijklmnopqrstuvwxyz-") == ""
}

// sel returns the selection that the options make, without the list.
func (o *Options) sel() source.Select {
	var s source.Select
	for _, p := range o.Include {
		s.Include = append(s.Include, string(p))
	}
	for _, p := range o.Exclude {
		s.Exclude = append(s.Exclude, string(p))
	}
	return s
}

// Selects reports whether readable items may be left out.
func (o *Options) Selects() bool {
	return o.List != "" || len(o.Include)+len(o.Exclude) > 0 || o.Limit > 0
}

// Validate reports errors in options before anything is changed.
func (o *Options) Validate() error {
	sel := o.sel()
	for _, err := range []error{o.Unpack.check(), o.OnError.check(), o.Overflow.check(), o.Fill.check(), o.Index.check(), o.Replicas.Check(), sel.Check()} {
		if err != nil {
			return err
		}
	}
	switch {
	case o.Unpack == UnpackNested && o.OnError == OnErrorSkip:
		return fmt.Errorf("unpack=nested and on-error=skip cannot be combined, because members of nested tars are found before they are read: give one of them: %w", syscall.EINVAL)
	case o.Limit < 0:
		return fmt.Errorf("a limit of %d files: %w", o.Limit, syscall.EINVAL)
	case o.Cache != "" && !filepath.IsAbs(string(o.Cache)) || strings.ContainsRune(string(o.Cache), 0):
		return fmt.Errorf("the cache directory %q is not an absolute path: %w", o.Cache, syscall.EINVAL)
	case o.List != "" && !strings.HasPrefix(string(o.List), "/") || strings.ContainsRune(string(o.List), 0):
		return fmt.Errorf("the list %q is not an absolute path: %w", o.List, syscall.EINVAL)
	}
	return nil
}

// Index determines where the indexes of tars are kept: one of the constants, or the path of a file or directory.
type Index string

// Places for an index.
const (
	IndexAuto   Index = ""       // in the user's cache directory; an index beside the archive is used too
	IndexCache  Index = "cache"  // in the user's cache directory
	IndexBeside Index = "beside" // in the archive's directory
	IndexOff    Index = "off"    // nowhere
)

func (x Index) check() error {
	switch x {
	case IndexAuto, IndexCache, IndexBeside, IndexOff:
		return nil
	}
	if !filepath.IsAbs(string(x)) || strings.ContainsRune(string(x), 0) {
		return fmt.Errorf("want auto, cache, beside, off, or a path with a slash in it: %w", syscall.EINVAL)
	}
	return nil
}

// Asked reports whether the user chose a place: then archives are scanned to have an index.
func (x Index) Asked() bool { return x != IndexAuto && x != IndexOff }

// in returns x with a relative path resolved against the directory wd.
func (x Index) in(wd string) Index {
	if strings.Contains(string(x), "/") && !filepath.IsAbs(string(x)) {
		return Index(filepath.Join(wd, string(x)))
	}
	return x
}

// Overflow is the option for files that do not fit on the nodes.
type Overflow string

// The values of Overflow.
const (
	OverflowSource Overflow = ""     // they overflow: they stay in the source and are read through
	OverflowFail   Overflow = "fail" // the stage-in fails before a byte is copied
)

func (s Overflow) check() error {
	if s != OverflowSource && s != OverflowFail {
		return fmt.Errorf("want source or fail: %w", syscall.EINVAL)
	}
	return nil
}
