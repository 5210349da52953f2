package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// namedTest is a test in a table: its package and its name.
var namedTest = regexp.MustCompile("`([a-z/]+) (Test[A-Za-z0-9]+)`")

// TestFailureTable: every row of the table of failures names tests that exist.
func TestFailureTable(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../deploy/docs/admin-guide.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\n## Failures\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	rows := 0
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| when |") {
			continue
		}
		rows++
		tests := namedTest.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 {
			t.Errorf("no test shows this: %s", line)
		}
		for _, m := range tests {
			if !hasTest(t, m[1], m[2]) {
				t.Errorf("%s has no %s, which shows: %s", m[1], m[2], line)
			}
		}
	}
	if rows < 15 {
		t.Errorf("the table of failures has %d rows", rows)
	}
}

// hasTest reports whether a package has a test.
func hasTest(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("\nfunc "+name+"(t *testing.T)")) {
			return true
		}
	}
	return false
}
