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
	_, err := fmt.Fprintf(w, "%d directories, %d files, %d names, %d orphans, %d objects: %d problems\n",
		r.Directories, r.Files, r.Names, r.Orphans, r.Objects, r.Wrong)
	return err
}
