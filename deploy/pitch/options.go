package pitch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// Access checks whether this user may use path as mode says, like access(2).
type Access func(path string, mode uint32) error

// CheckOptions turns the options of a submission into a Spec, and checks as this user that sources can be read and
// targets written. A nil access is access(2). The error has every complaint, one per line.
func CheckOptions(stageIn, stageOut []string, opts string, access Access) (Spec, error) {
	if access == nil {
		access = unix.Access
	}
	s := Spec{V: SpecVersion}
	var errs []error
	for _, v := range stageIn {
		d, err := ParseStageIn(v)
		if err == nil {
			err = checkSource(d, access)
			s.StageIn = append(s.StageIn, d)
		}
		errs = append(errs, err)
	}
	for _, v := range stageOut {
		o, err := ParseStageOut(v)
		if err == nil {
			err = checkTarget(o.To, access)
			s.StageOut = append(s.StageOut, o)
		}
		errs = append(errs, err)
	}
	var err error
	s.Opts, err = parseOpts(opts)
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return Spec{}, err
	}
	return s, s.validate()
}

// ParseStageIn parses SRC[:NAME][,KEY=VALUE]... as a user wrote it; SRC and the paths in options are relative to the
// working directory.
func ParseStageIn(v string) (job.Dataset, error) {
	wd, err := os.Getwd()
	if err != nil {
		return job.Dataset{}, fmt.Errorf("stage-in: %w", err)
	}
	req, err := stagein.ParseSpec(v, wd)
	if err == nil {
		req.Cache, err = indexCache(req.Index)
	}
	return job.Dataset{Source: req.Source, Name: req.Name, Options: req.Options}, err
}

// indexCache returns the directory of this user's cached indexes of tars; "" if they are not to be cached.
func indexCache(x stagein.Index) (source.Name, error) {
	if x != stagein.IndexAuto && x != stagein.IndexCache {
		return "", nil
	}
	dir, err := os.UserCacheDir()
	switch {
	case err == nil && filepath.IsAbs(dir):
		return source.Name(filepath.Join(dir, "bivouac")), nil
	case x == stagein.IndexCache:
		return "", errors.New("stage-in: index=cache: there is no cache directory: set HOME, or give index=beside or a path")
	}
	return "", nil // an index beside the archive is still used
}

// ParseStageOut parses FROM:TO. The target begins at the first slash after a colon, so that FROM may contain colons; a
// relative target follows the first colon.
func ParseStageOut(v string) (job.StageOut, error) {
	i := strings.Index(v, ":/")
	if i < 0 {
		i = strings.IndexByte(v, ':')
	}
	if i <= 0 || i == len(v)-1 {
		return job.StageOut{}, fmt.Errorf("stage-out: %q is not FROM:TO (FROM below $BIVOUAC_SCRATCH, TO a directory), such as ckpt:/lustre/me/run7", v)
	}
	to, err := filepath.Abs(v[i+1:])
	if err != nil {
		return job.StageOut{}, fmt.Errorf("stage-out: %w", err)
	}
	return job.StageOut{From: cleanFrom(v[:i]), To: to}, nil
}

// cleanFrom removes redundant elements of a path, but keeps "..", which validate refuses.
func cleanFrom(f string) string {
	if strings.Contains("/"+f+"/", "/../") {
		return f
	}
	return path.Clean(f)
}

func parseOpts(v string) (map[string]string, error) {
	if v == "" {
		return nil, nil
	}
	m := map[string]string{}
	var errs []error
	for pair := range strings.SplitSeq(v, ",") {
		k, val, ok := strings.Cut(pair, "=")
		_, twice := m[k]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("opts: %q is not KEY=VALUE: known keys are %s", pair, strings.Join(sortedKeys(knownOptions), ", ")))
			continue
		case twice:
			errs = append(errs, fmt.Errorf("opts: %s is given twice", k))
		}
		m[k] = val
	}
	return m, errors.Join(errs...)
}

// checkSource checks the source of a dataset, and its lists.
func checkSource(d job.Dataset, access Access) error {
	for _, l := range []string{string(d.Options.List), d.Options.Fill.List} {
		if l == "" {
			continue
		}
		if err := access(l, unix.R_OK); err != nil {
			return fmt.Errorf("stage-in: you cannot read the list %s: %w", l, err)
		}
	}
	paths := []string{d.Source}
	_, err := os.Lstat(d.Source)
	if errors.Is(err, fs.ErrNotExist) && walk.IsPattern(d.Source) {
		if paths, err = walk.Glob(source.OS{}, d.Source); err != nil {
			return fmt.Errorf("stage-in: %w", err)
		}
	}
	if len(paths) == 1 {
		return checkPathOf(d, paths[0], access, true)
	}
	for i, p := range paths {
		if err := checkPathOf(d, p, access, i == 0); err != nil {
			return err
		}
	}
	return nil
}

// checkPathOf checks one path of a source; with look it also detects the type of an archive.
func checkPathOf(d job.Dataset, p string, access Access, look bool) error {
	st, err := os.Stat(p)
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	switch {
	case st.IsDir():
		if err := access(p, unix.R_OK|unix.X_OK); err != nil {
			return fmt.Errorf("stage-in: you cannot read the directory %s: %w", p, err)
		}
		return nil
	case !st.Mode().IsRegular():
		return fmt.Errorf("stage-in: %s is neither an archive nor a directory", p)
	}
	if err := access(p, unix.R_OK); err != nil {
		return fmt.Errorf("stage-in: you cannot read %s: %w", p, err)
	}
	if d.Options.Unpack == stagein.UnpackNo || !look {
		return nil
	}
	if _, err := walk.Detect(source.OS{}, p); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	return nil
}

// checkTarget checks the nearest existing directory above p: the stage-out will make the missing ones there.
func checkTarget(p string, access Access) error {
	for d := p; ; d = filepath.Dir(d) {
		st, err := os.Stat(d)
		if errors.Is(err, fs.ErrNotExist) && d != "/" {
			continue
		}
		if err != nil {
			return fmt.Errorf("stage-out: %w", err)
		}
		if !st.IsDir() {
			return fmt.Errorf("stage-out: %s is not a directory", d)
		}
		if err := access(d, unix.W_OK|unix.X_OK); err != nil {
			return fmt.Errorf("stage-out: you cannot write in %s: %w", d, err)
		}
		return nil
	}
}
