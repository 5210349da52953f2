package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// namedTest matches a test in a table: its package and its name.
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

// message matches the first cell of a row if it is a single code span.
var message = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

// TestMessages: the messages in the troubleshooting tables are the program's, with … for variable parts.
func TestMessages(t *testing.T) {
	t.Parallel()
	code := product(t)
	n := 0
	for _, page := range []string{"user-guide.md", "training.md"} {
		b, err := os.ReadFile(filepath.Join("../deploy/docs", page))
		if err != nil {
			t.Fatal(err)
		}
		_, section, _ := strings.Cut(string(b), "\n## Troubleshooting\n")
		for _, m := range message.FindAllStringSubmatch(section, -1) {
			n++
			for part := range strings.SplitSeq(m[1], "…") {
				if !strings.Contains(code, strings.TrimSpace(part)) {
					t.Errorf("%s: no message has %q of: %s", page, part, m[1])
				}
			}
		}
	}
	if n < 15 {
		t.Errorf("found %d messages", n)
	}
}

// product returns the source of the programs, including the texts that users read; split strings are joined.
func product(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, room := range strings.Fields(topLevel) {
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, e os.DirEntry, err error) error {
			ext := filepath.Ext(path)
			if err != nil || e.IsDir() || strings.HasSuffix(path, "_test.go") || ext != ".go" && ext != ".py" && ext != ".c" {
				return err
			}
			b, err := os.ReadFile(path)
			all.Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return joints.ReplaceAllString(all.String(), "")
}

// joints matches where a string literal continues on the next line.
var joints = regexp.MustCompile(`"\s*\+?\n\s*f?"`)
