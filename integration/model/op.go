package model

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Op is one step of a script. Its kind determines which fields are used.
type Op struct {
	Mount int
	Kind  string
	H     int    // slot of a handle
	Path  string // relative to the directory of the test
	To    string // second path, or the target of a symbolic link
	Name  string // of an extended attribute
	Flags int
	Mode  uint32
	Off   int64
	Len   int64
	Seed  int64 // of the written bytes, or a time in seconds
}

// kind describes a kind of step: its fields, in the order they are written.
type kind struct {
	fields string
	flags  []bit
	weight int // how often it is generated
}

type bit struct {
	name string
	bits int
}

var openFlags = []bit{
	{"O_WRONLY", unix.O_WRONLY}, {"O_RDWR", unix.O_RDWR}, {"O_CREAT", unix.O_CREAT}, {"O_EXCL", unix.O_EXCL}, {"O_TRUNC", unix.O_TRUNC},
	{"O_APPEND", unix.O_APPEND}, {"O_DIRECTORY", unix.O_DIRECTORY}, {"O_NOFOLLOW", unix.O_NOFOLLOW}, {"O_DSYNC", unix.O_DSYNC},
}

var nofollow = []bit{{"AT_SYMLINK_NOFOLLOW", unix.AT_SYMLINK_NOFOLLOW}}

var kinds = map[string]kind{
	"open":      {"h path flags mode", openFlags, 20},
	"close":     {"h", nil, 6},
	"read":      {"h len", nil, 6},
	"pread":     {"h off len", nil, 8},
	"write":     {"h len seed", nil, 8},
	"pwrite":    {"h off len seed", nil, 12},
	"lseek":     {"h off flags", []bit{{"SEEK_CUR", 1}, {"SEEK_END", 2}, {"SEEK_DATA", 3}, {"SEEK_HOLE", 4}}, 5},
	"ftruncate": {"h len", nil, 5},
	"fallocate": {"h off len flags", []bit{{"KEEP_SIZE", 1}, {"PUNCH_HOLE", 2}, {"ZERO_RANGE", 16}}, 5},
	"fsync":     {"h", nil, 3},
	"fstat":     {"h", nil, 5},
	"fchmod":    {"h mode", nil, 2},
	"futimens":  {"h seed", nil, 2},
	"list":      {"h", nil, 3},
	"truncate":  {"path len", nil, 4},
	"stat":      {"path", nil, 6},
	"lstat":     {"path", nil, 6},
	"chmod":     {"path mode", nil, 4},
	"utimens":   {"path flags seed", nofollow, 4},
	"readdir":   {"path", nil, 5},
	"mkdir":     {"path mode", nil, 10},
	"rmdir":     {"path", nil, 5},
	"unlink":    {"path", nil, 8},
	"rename":    {"path to flags", []bit{{"RENAME_NOREPLACE", 1}, {"RENAME_EXCHANGE", 2}}, 16},
	"link":      {"path to flags", []bit{{"AT_SYMLINK_FOLLOW", unix.AT_SYMLINK_FOLLOW}}, 8},
	"symlink":   {"path to", nil, 5},
	"readlink":  {"path", nil, 3},
	"mkfifo":    {"path mode", nil, 1},
	"setxattr":  {"path name len seed flags", []bit{{"XATTR_CREATE", 1}, {"XATTR_REPLACE", 2}}, 4},
	"getxattr":  {"path name", nil, 3},
	"listxattr": {"path", nil, 2},
	"delxattr":  {"path name", nil, 2},
	"copyrange": {"h to off len seed", nil, 3}, // to is the target's slot, seed the offset there
}

var kindNames = slices.Sorted(maps.Keys(kinds))

// String returns the step as a line of a script.
func (o Op) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "m%d %s", o.Mount, o.Kind)
	for _, f := range strings.Fields(kinds[o.Kind].fields) {
		fmt.Fprintf(&b, " %s=%s", f, o.field(f))
	}
	return b.String()
}

func (o Op) field(name string) string {
	switch name {
	case "h":
		return strconv.Itoa(o.H)
	case "path":
		return strconv.Quote(o.Path)
	case "to":
		return strconv.Quote(o.To)
	case "name":
		return strconv.Quote(o.Name)
	case "flags":
		return flagString(kinds[o.Kind].flags, o.Flags)
	case "mode":
		return fmt.Sprintf("%#o", o.Mode)
	case "off":
		return strconv.FormatInt(o.Off, 10)
	case "len":
		return strconv.FormatInt(o.Len, 10)
	}
	return strconv.FormatInt(o.Seed, 10)
}

// flagString names the bits of v. It tries the whole value first, because SEEK_HOLE is not a set of bits.
func flagString(fs []bit, v int) string {
	var names []string
	for _, f := range fs {
		if f.bits == v {
			return f.name
		}
	}
	for _, f := range fs {
		if v&f.bits == f.bits {
			names = append(names, f.name)
			v &^= f.bits
		}
	}
	if v != 0 || len(names) == 0 {
		names = append(names, strconv.Itoa(v))
	}
	return strings.Join(names, "|")
}

func parseFlags(fs []bit, s string) (int, error) {
	v := 0
	for name := range strings.SplitSeq(s, "|") {
		i := slices.IndexFunc(fs, func(f bit) bool { return f.name == name })
		if i >= 0 {
			v |= fs[i].bits
			continue
		}
		n, err := strconv.Atoi(name)
		if err != nil {
			return 0, fmt.Errorf("no flag %q", name)
		}
		v |= n
	}
	return v, nil
}

// Format returns a script as text.
func Format(script []Op) string {
	var b strings.Builder
	for _, o := range script {
		b.WriteString(o.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Parse reads a script for this number of mounts.
func Parse(text string, mounts int) ([]Op, error) {
	var script []Op
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		o, err := parseOp(line)
		if err == nil && o.Mount >= mounts {
			err = fmt.Errorf("there are %d mounts", mounts)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		script = append(script, o)
	}
	return script, nil
}

func parseOp(line string) (Op, error) {
	var o Op
	m, rest, _ := strings.Cut(line, " ")
	n, err := strconv.ParseUint(strings.TrimPrefix(m, "m"), 10, 8)
	if err != nil || m[0] != 'm' {
		return o, fmt.Errorf("%q is no mount", m)
	}
	o.Mount = int(n)
	o.Kind, rest, _ = strings.Cut(rest, " ")
	k, ok := kinds[o.Kind]
	if !ok {
		return o, fmt.Errorf("no step %q", o.Kind)
	}
	for _, f := range strings.Fields(k.fields) {
		value, ok := strings.CutPrefix(strings.TrimSpace(rest), f+"=")
		if !ok {
			return o, fmt.Errorf("%s wants %s= at %q", o.Kind, f, rest)
		}
		if rest, err = o.setField(f, value); err != nil {
			return o, fmt.Errorf("%s=: %w", f, err)
		}
	}
	if rest != "" {
		return o, fmt.Errorf("more than %s wants: %q", o.Kind, rest)
	}
	return o, nil
}

// setField parses the field's value from the front of s and returns the rest.
func (o *Op) setField(name, s string) (rest string, err error) {
	text := map[string]*string{"path": &o.Path, "to": &o.To, "name": &o.Name}
	if p, ok := text[name]; ok {
		q, err := strconv.QuotedPrefix(s)
		if err != nil {
			return "", err
		}
		*p, err = strconv.Unquote(q)
		return s[len(q):], err
	}
	v, rest, _ := strings.Cut(s, " ")
	switch name {
	case "flags":
		o.Flags, err = parseFlags(kinds[o.Kind].flags, v)
		return rest, err
	case "h":
		o.H, err = strconv.Atoi(v)
		return rest, err
	case "mode":
		m, err := strconv.ParseUint(v, 0, 12)
		o.Mode = uint32(m)
		return rest, err
	}
	n, err := strconv.ParseInt(v, 10, 64)
	*map[string]*int64{"off": &o.Off, "len": &o.Len, "seed": &o.Seed}[name] = n
	return rest, err
}

// slot returns the handle that copyrange writes to.
func (o Op) slot() int {
	n, err := strconv.Atoi(o.To)
	if err != nil {
		return -1
	}
	return n
}
