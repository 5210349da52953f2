package integration

import (
	"bytes"
	"cmp"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var figures = flag.Bool("figures", false, "TestLimits prints the figures of the house")

// The limits of the house. They hold for product code; the tests in integration have no such limits.
const (
	maxFiles     = 27  // product files of a package
	maxMethods   = 80  // methods of a type
	maxFunction  = 80  // lines of a function
	maxFile      = 450 // lines of a product file
	maxPackages  = 9   // mean of product files over the packages
	maxMeanLines = 1500.0
	maxProduct   = 72_000 // lines of product code
	maxProse     = 160    // characters of a line of Markdown outside tables and code
	maxReadme    = 120    // lines of README.md, and characters of a line of its prose
	maxTerms     = 25     // rows of the glossary
	maxRoomDoc   = 80     // lines of a package comment in doc.go
)

// debts lists the current excesses over limits. A debt can only shrink: a change that reduces it writes the new
// number here, and a paid debt is removed.
var debts = map[string]int{
	"product lines": 95_878,
}

// allowed returns the limit, or the debt if that is larger.
func allowed(thing string, limit int) int { return max(limit, debts[thing]) }

// roomy lists packages that may have more files: there, one file is one command.
var roomy = []string{"deploy/bivouac"}

// specifications lists packages whose comment is a specification, byte by byte or row by row, that their tests are
// checked against.
var specifications = []string{"datapath/wire", "metadata/pebblestore", "fsclient/mount"}

// room holds the counts of a package.
type room struct {
	files, lines, tests int
	methods             map[string]int // by type
}

// house holds the counts of the whole code.
type house struct {
	rooms     map[string]*room
	functions []int // lines of each, without tests
}

// TestLimits holds the house to its limits, and names the offender.
func TestLimits(t *testing.T) {
	h := house{rooms: make(map[string]*room)}
	for _, f := range sources(t) {
		if within(f.pkg, []string{"integration", "integration/"}) {
			continue
		}
		f.test = f.test || strings.HasSuffix(f.pkg, "test") // harnesses and conformance suites
		h.count(t, f)
	}
	lines, inside, files, packages := 0, 0, 0, 0
	for pkg, r := range h.rooms {
		if r.files == 0 {
			continue
		}
		lines += r.lines
		if !slices.Contains(roomy, pkg) {
			packages++
			files += r.files
			inside += r.lines
		}
		if r.files > allowed(pkg+" files", maxFiles) && !slices.Contains(roomy, pkg) {
			t.Errorf("package %s has %d product files, the limit is %d: which of them are a room of their own?", pkg, r.files, maxFiles)
		}
		for name, n := range r.methods {
			if n > allowed(pkg+"."+name+" methods", maxMethods) {
				t.Errorf("%s.%s has %d methods, the limit is %d: which of them share fields?", pkg, name, n, maxMethods)
			}
		}
	}
	if mean := files * 10 / packages; mean > allowed("files of a package", maxPackages*10) {
		t.Errorf("%d tenths of a product file per package, the limit is %d files", mean, maxPackages)
	}
	if mean := float64(inside) / float64(packages); mean > maxMeanLines {
		t.Errorf("%.0f lines per package, the limit is %v", mean, maxMeanLines)
	}
	if lines > allowed("product lines", maxProduct) {
		t.Errorf("%d lines of product code, the limit is %d", lines, maxProduct)
	}
	if *figures {
		h.print(t, files, inside, packages)
	}
}

// count adds one file.
func (h *house) count(t *testing.T, f file) {
	t.Helper()
	src, err := os.ReadFile(filepath.Join("..", f.path))
	if err != nil {
		t.Fatal(err)
	}
	r := h.rooms[f.pkg]
	if r == nil {
		r = &room{methods: make(map[string]int)}
		h.rooms[f.pkg] = r
	}
	n := bytes.Count(src, []byte("\n"))
	if f.test {
		r.tests += n
		return
	}
	r.files++
	r.lines += n
	if n > allowed(f.path, maxFile) {
		t.Errorf("%s has %d lines, the limit is %d: where is the seam?", f.path, n, maxFile)
	}
	set := token.NewFileSet()
	p, err := parser.ParseFile(set, f.path, src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	line := func(p token.Pos) int { return set.Position(p).Line }
	if p.Doc != nil && !slices.Contains(specifications, f.pkg) && line(p.Doc.End())-line(p.Doc.Pos())+1 > maxRoomDoc {
		t.Errorf("%s: a package comment of %d lines, the limit is %d", f.path, line(p.Doc.End())-line(p.Doc.Pos())+1, maxRoomDoc)
	}
	for _, d := range p.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		long := line(fn.End()) - line(fn.Pos()) + 1
		h.functions = append(h.functions, long)
		if long > maxFunction {
			t.Errorf("%s:%d: %s has %d lines, the limit is %d", f.path, line(fn.Pos()), fn.Name.Name, long, maxFunction)
		}
		if fn.Recv != nil {
			r.methods[receiver(fn.Recv.List[0].Type)]++
		}
	}
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// print logs the figures to compare after a large change.
func (h *house) print(t *testing.T, files, lines, packages int) {
	t.Helper()
	t.Logf("%d packages, %.1f files and %.0f lines each; %d lines of product code in them", packages, float64(files)/float64(packages), float64(lines)/float64(packages), lines)
	type named struct {
		name string
		n    int
	}
	var largest, methods []named
	tests := 0
	daemonCode, daemonTests := 0, 0
	for pkg, r := range h.rooms {
		largest = append(largest, named{pkg, r.files})
		tests += r.tests
		for typ, n := range r.methods {
			methods = append(methods, named{pkg + "." + typ, n})
		}
		if pkg == "daemon" || strings.HasPrefix(pkg, "daemon/") {
			daemonCode, daemonTests = daemonCode+r.lines, daemonTests+r.tests
		}
	}
	down := func(a, b named) int { return cmp.Compare(b.n, a.n) }
	slices.SortFunc(largest, down)
	slices.SortFunc(methods, down)
	slices.Sort(h.functions)
	at := func(p int) int { return h.functions[len(h.functions)*p/100] }
	t.Logf("largest packages: %v", largest[:min(6, len(largest))])
	t.Logf("largest types: %v", methods[:min(6, len(methods))])
	t.Logf("lines of a function: p50 %d, p90 %d, max %d", at(50), at(90), h.functions[len(h.functions)-1])
	t.Logf("lines of tests: %d; of daemon: %d for %d of code", tests, daemonTests, daemonCode)
}

// TestProse: document lines fit a narrow window, and README.md is short.
func TestProse(t *testing.T) {
	for _, name := range documents(t) {
		b, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		limit := maxProse
		lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
		if name == "README.md" {
			if limit = maxReadme; len(lines) > maxReadme {
				t.Errorf("README.md has %d lines, the limit is %d: what belongs into deploy/docs?", len(lines), maxReadme)
			}
		}
		if name == "ARCHITECTURE.md" && len(lines) > 200 {
			t.Errorf("ARCHITECTURE.md has %d lines, the limit is 200", len(lines))
		}
		fenced, rows := false, -2 // the title and the rule below it
		for i, l := range lines {
			if strings.HasPrefix(strings.TrimSpace(l), "```") {
				fenced = !fenced
			}
			table := strings.HasPrefix(l, "|")
			if table {
				rows++
			}
			code := fenced || strings.HasPrefix(l, "    ")
			if n := len([]rune(l)); n > limit && !table && !code {
				t.Errorf("%s:%d: a line of %d characters, the limit is %d", name, i+1, n, limit)
			}
		}
		if name == "deploy/docs/glossary.md" && rows > maxTerms {
			t.Errorf("%s has %d terms, the limit is %d: which have a usual name?", name, rows, maxTerms)
		}
	}
}

// documents returns the Markdown files of the project.
func documents(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir("..", func(path string, e os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && strings.HasPrefix(e.Name(), ".") && e.Name() != "..", e.IsDir() && (e.Name() == "build" || e.Name() == "bin"):
			return filepath.SkipDir
		case filepath.Ext(path) == ".md":
			names = append(names, filepath.Clean(strings.TrimPrefix(path, "../")))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
