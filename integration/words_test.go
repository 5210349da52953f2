package integration

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"testing"
)

// dialect matches phrases that comments had before they were rewritten in plain English.
var dialect = regexp.MustCompile(`(?i)\b((is|are|was|were) told|who (is|has|was|had)|what is there|comes to nothing|goes on)\b`)

// TestWords: no comment uses the old dialect.
func TestWords(t *testing.T) {
	for _, f := range sources(t) {
		set := token.NewFileSet()
		p, err := parser.ParseFile(set, filepath.Join("..", f.path), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range p.Comments {
			for _, c := range g.List {
				if w := dialect.FindString(c.Text); w != "" {
					t.Errorf("%s: a comment says %q: name the subject, and what it does", set.Position(c.Pos()), w)
				}
			}
		}
	}
}
