package stagein

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// Request describes a stage-in that a user wants.
type Request struct {
	Source string // absolute path
	Name   string // of the dataset: its directory under data/
	Seed   uint64 // of the order; placement has the map's
	Options
}

// ParseSpec parses "SRC[:NAME][,KEY=VALUE]...". A colon separates a name only if no slash follows it. The default name
// is the last component without an archive suffix; with unpack=no it loses any suffix that begins with a letter, so
// that a file is not in a directory of its own name; for a pattern, it is that of the last directory before the
// pattern. Relative paths in SRC, list=, order=list: and index= are resolved against wd.
func ParseSpec(s, wd string) (Request, error) {
	if err := refuseURL(s); err != nil {
		return Request{}, err
	}
	src, opts, some := cutOptions(s)
	var r Request
	if some {
		var err error
		if r.Options, err = parseOptions(opts); err != nil {
			return Request{}, fmt.Errorf("stage-in %q: %w", s, err)
		}
		if l := string(r.List); l != "" && !filepath.IsAbs(l) {
			r.List = source.Name(filepath.Join(wd, l))
		}
		r.Index = r.Index.in(wd)
		if l := r.Fill.List; l != "" && !filepath.IsAbs(l) {
			r.Fill.List = filepath.Join(wd, l)
		}
	}
	if i := strings.LastIndexByte(src, ':'); i >= 0 && !strings.Contains(src[i:], "/") {
		src, r.Name = src[:i], src[i+1:]
		if r.Name == "" {
			return Request{}, fmt.Errorf("stage-in %q: no name after the colon: %w", s, syscall.EINVAL)
		}
	}
	if src == "" {
		return Request{}, fmt.Errorf("stage-in %q: no source: %w", s, syscall.EINVAL)
	}
	if !filepath.IsAbs(src) && wd != "" {
		src = wd + "/" + src
	}
	r.Source = filepath.Clean(src)
	if r.Name == "" {
		r.Name = DefaultName(r.Source)
		if r.Unpack == UnpackNo && r.Name == filepath.Base(r.Source) {
			r.Name = stem(r.Name)
		}
	}
	return r, r.Validate()
}

// refuseURL refuses a source that is a URL, and suggests a remedy.
func refuseURL(s string) error {
	scheme, _, ok := strings.Cut(s, "://")
	if !ok || scheme == "" || strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-") != "" {
		return nil
	}
	return fmt.Errorf("stage-in: %s:// URLs cannot be staged: copy the data to a filesystem that all nodes see, or mount it there, and give its path: %w", scheme, syscall.EINVAL)
}

// endings lists the suffixes of archive names.
var endings = []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2", ".zip"}

// DefaultName returns the default name of the dataset of a source: see ParseSpec.
func DefaultName(src string) string {
	for walk.IsPattern(src) && src != "/" {
		src = filepath.Dir(src)
	}
	base := filepath.Base(src)
	for _, e := range endings {
		if cut, ok := strings.CutSuffix(base, e); ok && cut != "" {
			return cut
		}
	}
	return base
}

// stem returns a file's name without its suffix; the .2 of a version is not a suffix.
func stem(name string) string {
	ext := filepath.Ext(name)
	if len(ext) < 2 || len(ext) == len(name) || ext[1] >= '0' && ext[1] <= '9' {
		return name
	}
	return strings.TrimSuffix(name, ext)
}

// Validate reports errors in a request before anything is changed.
func (r Request) Validate() error {
	complaint := ""
	switch {
	case !filepath.IsAbs(r.Source):
		complaint = "the source is not an absolute path"
	case strings.ContainsRune(r.Source, 0):
		complaint = "the source has a NUL in it"
	case r.Name == "" || r.Name == "." || r.Name == ".." || strings.ContainsAny(r.Name, "/\x00\n"):
		complaint = fmt.Sprintf("%q cannot be a directory's name: give one as SRC:NAME", r.Name)
	case !utf8.ValidString(r.Name):
		complaint = fmt.Sprintf("the name %q is not UTF-8: give one as SRC:NAME", r.Name)
	case len(r.Name) > metadata.MaxName:
		complaint = fmt.Sprintf("the name is longer than %d bytes", metadata.MaxName)
	}
	if complaint == "" {
		if err := r.Options.Validate(); err != nil {
			return fmt.Errorf("stage-in of %q: %w", r.Source, err)
		}
		return nil
	}
	return fmt.Errorf("stage-in of %q: %s: %w", r.Source, complaint, syscall.EINVAL)
}
