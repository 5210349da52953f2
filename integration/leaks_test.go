package integration

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// goroutines describes a package's use of goroutines.
type goroutines struct {
	starts  string // position where product code starts one, or ""
	tests   bool   // it has tests
	watched bool   // by a TestMain that calls leaktest.Main
}

// TestLeaksAreFound: every package that starts goroutines, and has tests, checks that its tests leak none.
func TestLeaksAreFound(t *testing.T) {
	all := make(map[string]*goroutines)
	for _, f := range sources(t) {
		if within(f.pkg, []string{"integration", "integration/"}) {
			continue // clusters of processes
		}
		g := all[f.pkg]
		if g == nil {
			g = new(goroutines)
			all[f.pkg] = g
		}
		g.look(t, f)
	}
	starting := 0
	for pkg, g := range all {
		if g.starts == "" || !g.tests {
			continue
		}
		if starting++; !g.watched {
			t.Errorf("%s: package %s starts goroutines: its tests need func TestMain(m *testing.M) { leaktest.Main(m) }", g.starts, pkg)
		}
	}
	if starting < 20 {
		t.Errorf("%d packages start goroutines: this test overlooks some", starting)
	}
}

// look analyses one file.
func (g *goroutines) look(t *testing.T, f file) {
	t.Helper()
	set := token.NewFileSet()
	p, err := parser.ParseFile(set, filepath.Join("..", f.path), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	g.tests = g.tests || f.test
	ast.Inspect(p, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			g.found(f, set.Position(n.Pos()))
		case *ast.SelectorExpr: // on a sync.WaitGroup or errgroup.Group; or leaktest.Main
			x, ok := n.X.(*ast.Ident)
			g.watched = g.watched || f.test && ok && x.Name == "leaktest" && n.Sel.Name == "Main"
			if n.Sel.Name == "Go" || n.Sel.Name == "TryGo" {
				g.found(f, set.Position(n.Pos()))
			}
		}
		return true
	})
}

func (g *goroutines) found(f file, at token.Position) {
	if !f.test {
		g.starts = at.String()
	}
}
