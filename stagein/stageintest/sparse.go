package stageintest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// sparseFormats maps each sparse format of GNU tar to its options.
var sparseFormats = map[string][]string{
	"old gnu": {"--format=gnu"},
	"0.0":     {"--format=posix", "--sparse-version=0.0"},
	"0.1":     {"--format=posix", "--sparse-version=0.1"},
	"1.0":     {"--format=posix", "--sparse-version=1.0"},
}

// SparseTar calls f with an archive in each sparse format, made by the tar program from
// the files that sizes creates.
func SparseTar(t *testing.T, sizes func(dir string) error, f func(t *testing.T, archive []byte)) {
	t.Helper()
	program, err := exec.LookPath("tar")
	if err != nil {
		t.Skip("no tar program")
	}
	dir := t.TempDir()
	if err := sizes(dir); err != nil {
		t.Fatal(err)
	}
	for name, options := range sparseFormats {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"-C", dir, "-S", "--sort=name", "-cf", "-"}, options...)
			archive, err := exec.Command(program, append(args, ".")...).Output()
			if err != nil {
				t.Fatal(err)
			}
			f(t, archive)
		})
	}
}

// HoleyFile writes a file of size bytes with data at the given places.
func HoleyFile(path string, r *rand.Rand, size int64, at ...int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	for _, off := range at {
		b := RandBytes(r, int(min(700, size-off)))
		if _, err := f.WriteAt(b, off); err != nil {
			return err
		}
	}
	return f.Close()
}

// NotSparse is the prefix of PAX records in place of "GNU.sparse.", because archive/tar
// refuses to write sparse members. AsSparse puts the real prefix back.
const NotSparse = "XNU.sparse."

// AsSparse turns the NotSparse records of an archive into sparse ones.
func AsSparse(archive []byte) []byte {
	return bytes.ReplaceAll(archive, []byte(NotSparse), []byte("GNU.sparse."))
}

// SparseMember returns a file with holes in GNU's format 0.1.
func SparseMember(r *rand.Rand, name string) Member {
	n := 1 + r.IntN(900)
	h := tar.Header{Name: name, Typeflag: tar.TypeReg, PAXRecords: map[string]string{
		NotSparse + "size": fmt.Sprint(5000 + n), NotSparse + "numblocks": "2", NotSparse + "map": fmt.Sprintf("100,%d,4000,%d", n, n),
	}}
	return Member{Header: h, Data: RandBytes(r, 2*n)}
}

// HoleyFiles writes a tree of files with holes, and one without.
func HoleyFiles(r *rand.Rand) func(dir string) error {
	return func(dir string) error {
		var errs []error
		for i := range 12 {
			size := int64(2000 + 9000*i)
			errs = append(errs, HoleyFile(filepath.Join(dir, fmt.Sprint("f", i)), r, size, size/3&^4095, size/2&^4095, size-1500))
		}
		return errors.Join(append(errs, HoleyFile(filepath.Join(dir, "none"), r, 50_000), HoleyFile(filepath.Join(dir, "plain"), r, 700, 0))...)
	}
}
