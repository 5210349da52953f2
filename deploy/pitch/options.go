package pitch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
)

// Access asks whether this user may use path in the ways of mode, as access(2).
type Access func(path string, mode uint32) error

// CheckOptions turns what the user wrote at submission into a Spec, and checks
// as this user that sources can be read and targets written. A nil access is
// access(2). Every complaint is in the error, one to a line.
func CheckOptions(stageIn, stageOut []string, opts string, access Access) (Spec, error) {
	if access == nil {
		access = unix.Access
	}
	s := Spec{V: SpecVersion}
	var errs []error
	for _, v := range stageIn {
		d, err := parseStageIn(v)
		if err == nil {
			err = checkSource(d.Source, access)
			s.StageIn = append(s.StageIn, d)
		}
		errs = append(errs, err)
	}
	for _, v := range stageOut {
		o, err := parseStageOut(v)
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

// parseStageIn reads SRC[:NAME]. A colon that is followed by a slash further
// on belongs to the path.
func parseStageIn(v string) (daemon.DatasetSpec, error) {
	src, name := v, ""
	if i := strings.LastIndexByte(v, ':'); i >= 0 && !strings.ContainsRune(v[i:], '/') {
		src, name = v[:i], v[i+1:]
		if name == "" {
			return daemon.DatasetSpec{}, fmt.Errorf("stage-in: %q has no name after the colon: write SRC or SRC:NAME", v)
		}
	}
	if src == "" {
		return daemon.DatasetSpec{}, fmt.Errorf("stage-in: %q has no source: write SRC or SRC:NAME", v)
	}
	abs, err := filepath.Abs(src)
	if err != nil {
		return daemon.DatasetSpec{}, fmt.Errorf("stage-in: %w", err)
	}
	if name == "" {
		name = strings.TrimSuffix(filepath.Base(abs), ".tar")
	}
	return daemon.DatasetSpec{Source: abs, Name: name}, nil
}

// parseStageOut reads FROM:TO. The target begins at the first slash after a
// colon, so that FROM may have colons; a relative target follows the first.
func parseStageOut(v string) (daemon.OutSpec, error) {
	i := strings.Index(v, ":/")
	if i < 0 {
		i = strings.IndexByte(v, ':')
	}
	if i <= 0 || i == len(v)-1 {
		return daemon.OutSpec{}, fmt.Errorf("stage-out: %q is not FROM:TO (FROM below $BIVOUAC_SCRATCH, TO a directory)", v)
	}
	to, err := filepath.Abs(v[i+1:])
	if err != nil {
		return daemon.OutSpec{}, fmt.Errorf("stage-out: %w", err)
	}
	return daemon.OutSpec{From: cleanFrom(v[:i]), To: to}, nil
}

// cleanFrom cleans what is only untidy; .. stays for validate to refuse.
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

func checkSource(p string, access Access) error {
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
		return fmt.Errorf("stage-in: %s is neither a tar nor a directory", p)
	}
	if err := access(p, unix.R_OK); err != nil {
		return fmt.Errorf("stage-in: you cannot read %s: %w", p, err)
	}
	return checkTar(p)
}

// checkTar looks at the first block, so that the usual mistakes show at once.
func checkTar(p string) error {
	f, err := os.Open(p)
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	defer f.Close()
	block := make([]byte, 512)
	n, err := io.ReadFull(f, block)
	switch {
	case err == io.EOF:
		return fmt.Errorf("stage-in: %s is empty", p)
	case bytes.HasPrefix(block, []byte{0x1f, 0x8b}), bytes.HasPrefix(block, []byte{0x28, 0xb5, 0x2f, 0xfd}),
		bytes.HasPrefix(block, []byte("BZh")), bytes.HasPrefix(block, []byte("\xfd7zXZ")):
		return fmt.Errorf("stage-in: %s is compressed: give the tar itself", p)
	case err == io.ErrUnexpectedEOF:
		return fmt.Errorf("stage-in: %s is not a tar: it has only %d bytes", p, n)
	case err != nil:
		return fmt.Errorf("stage-in: %s: %w", p, err)
	case bytes.Count(block, []byte{0}) == len(block):
		return fmt.Errorf("stage-in: %s is a tar without members", p)
	case !tarHeader(block):
		return fmt.Errorf("stage-in: %s is not a tar", p)
	}
	return nil
}

// tarHeader reports whether block's checksum is that of a tar header.
func tarHeader(block []byte) bool {
	want, sum := int64(0), int64(0)
	for _, c := range bytes.Trim(block[148:156], " \x00") {
		if c < '0' || c > '7' {
			return false
		}
		want = want<<3 | int64(c-'0')
	}
	for i, c := range block {
		if i >= 148 && i < 156 {
			c = ' '
		}
		sum += int64(c)
	}
	return sum == want
}

// checkTarget looks at the nearest directory above p that exists: there the
// stage-out will make what is missing.
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
