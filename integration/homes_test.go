package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// asksNode matches a query of a home's node, although another node may hold the home's records.
var asksNode = regexp.MustCompile(`\b(Node|Alive|Serving|Data|Throughout|Up)\([^()]*\b(home|Home\(\))\)`)

// TestHomesAreAskedAsHomes: code checks a lost home with cluster.Map.HomeAt and HomeServes, never by the state of the
// node with its number: the partner may stand in for it.
func TestHomesAreAskedAsHomes(t *testing.T) {
	if !asksNode.MatchString("n, _ := m.Node(e.Ino.Home())") || !asksNode.MatchString("if !node.Serving(nodes, home) {") {
		t.Fatal("the pattern finds nothing")
	}
	for _, room := range []string{"metadata", "fsclient", "daemon"} {
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			for i, l := range strings.Split(string(b), "\n") {
				if asksNode.MatchString(l) {
					t.Errorf("%s:%d: %s: ask cluster.Map.HomeAt or HomeServes", path, i+1, strings.TrimSpace(l))
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
