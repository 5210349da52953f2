// Command site builds the documentation as a static site: README.md and the pages that it links to, each as one HTML
// file that needs no script and no network. A link to a missing page, heading or file is an error.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	out := flag.String("out", "build/docs", "directory to write to")
	flag.Parse()
	if err := build(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}
