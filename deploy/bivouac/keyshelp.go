package main

import (
	"fmt"
	"strings"

	"github.com/bivouacfs/bivouac/stagein"
)

// keysHelp returns the part of a help text that documents options KEY=VALUE, at most 80 columns wide.
func keysHelp(keys []stagein.Key) string {
	const indent, width = 28, 80
	var b strings.Builder
	for _, k := range keys {
		line := fmt.Sprintf("    %s=%s", k.Name, k.Values)
		if len(line) > indent-2 {
			b.WriteString(line + "\n")
			line = ""
		}
		line = fmt.Sprintf("%-*s", indent-1, line)
		for word := range strings.FieldsSeq(k.Meaning + " (default: " + k.Default + ")") {
			if len(line)+1+len(word) > width {
				b.WriteString(line + "\n")
				line = strings.Repeat(" ", indent-1)
			}
			line += " " + word
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
