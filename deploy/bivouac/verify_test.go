package main

import (
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/dataset"
)

// TestTellVerified: verify reports what it did not check, and how to check that.
func TestTellVerified(t *testing.T) {
	var w strings.Builder
	tellVerified(&w, "set", dataset.VerifyResult{Files: 3, Bytes: 10, Bad: 1, Overflow: 7, BadFiles: []dataset.BadFile{
		{Path: "a/b", Host: "n1", Source: true, Error: "/src/set.tar.zst at offset 5: is wrong"},
	}})
	const want = `bivouac: set: "a/b" read by n1: /src/set.tar.zst at offset 5: is wrong
bivouac: set: 3 files, 10 B read, 1 damaged
bivouac: set: 7 more files are only in the source and were not checked: run bivouac verify --source set
`
	if w.String() != want {
		t.Errorf("verify says\n%s, want\n%s", &w, want)
	}
}
