package show

import (
	"fmt"
	"io"

	"github.com/bivouacfs/bivouac/daemon/home"
)

// Check writes what a check of the live realm has found.
func Check(w io.Writer, r home.CheckResult) error {
	for _, p := range r.Problems {
		fmt.Fprintln(w, p)
	}
	if more := r.Wrong - len(r.Problems); more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
	_, err := fmt.Fprintf(w, "%s, %s, %s, %s, %s: %s\n", Count(r.Directories, "directory"), Count(r.Files, "file"), Count(r.Names, "name"),
		Count(r.Orphans, "orphan"), Count(r.Objects, "object"), Count(int64(r.Wrong), "problem"))
	return err
}
