package stagein

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Request is what a user wants staged.
type Request struct {
	Source string // absolute path
	Name   string // of the dataset: its directory under data/
	Seed   uint64 // of the order; placement has the map's
}

// ParseSpec reads "SRC[:NAME]". A colon separates a name only if no slash
// follows it. The default name is the last component without an archive's ending.
func ParseSpec(s string) (Request, error) {
	src, name := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.Contains(s[i:], "/") {
		src, name = s[:i], s[i+1:]
		if name == "" {
			return Request{}, fmt.Errorf("stage-in %q: no name after the colon: %w", s, syscall.EINVAL)
		}
	}
	if src == "" {
		return Request{}, fmt.Errorf("stage-in %q: no source: %w", s, syscall.EINVAL)
	}
	src = filepath.Clean(src)
	if name == "" {
		name = defaultName(filepath.Base(src))
	}
	r := Request{Source: src, Name: name}
	return r, r.Validate()
}

// endings is what archives' names end with.
var endings = []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2", ".zip"}

func defaultName(base string) string {
	for _, e := range endings {
		if cut, ok := strings.CutSuffix(base, e); ok && cut != "" {
			return cut
		}
	}
	return base
}

// Validate says what is wrong with a request before anything is touched.
func (r Request) Validate() error {
	complaint := ""
	switch {
	case !filepath.IsAbs(r.Source):
		complaint = "the source is not an absolute path"
	case strings.ContainsRune(r.Source, 0):
		complaint = "the source has a NUL in it"
	case r.Name == "" || r.Name == "." || r.Name == ".." || strings.ContainsAny(r.Name, "/\x00\n"):
		complaint = fmt.Sprintf("%q cannot be a directory's name: give one as SRC:NAME", r.Name)
	case len(r.Name) > metadata.MaxName:
		complaint = fmt.Sprintf("the name is longer than %d bytes", metadata.MaxName)
	}
	if complaint == "" {
		return nil
	}
	return fmt.Errorf("stage-in of %q: %s: %w", r.Source, complaint, syscall.EINVAL)
}
