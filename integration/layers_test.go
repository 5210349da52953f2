// Package integration holds tests of the whole system. This file is the floor plan: which package may import which.
package integration

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/bivouacfs/bivouac"

// floors is the house. A package imports only packages on lower floors.
var floors = map[string]int{
	"metadata":                0,
	"datapath/retry":          0,
	"metadata/cluster":        1,
	"metadata/erofs":          1,
	"metadata/accessplan":     1,
	"datapath":                1,
	"datapath/rate":           1,
	"datapath/rails":          1,
	"datapath/secure":         1,
	"metadata/leases":         1,
	"metadata/appends":        1,
	"metadata/varint":         1,
	"metadata/copies":         2,
	"metadata/mirror":         2,
	"metadata/metadatatest":   2,
	"metadata/pebblestore":    2,
	"metadata/opens":          2,
	"metadata/txn":            2,
	"metadata/locks":          2,
	"datapath/datapathtest":   2,
	"datapath/wire":           2,
	"datapath/chunkstore":     2,
	"metadata/manifest":       3,
	"metadata/shard":          3,
	"datapath/rpc":            3,
	"metadata/raftstore":      4,
	"fsclient/remote":         4,
	"stagein/source":          3,
	"stagein/source/tar":      4,
	"stagein/source/zip":      4,
	"stagein/source/unpack":   4,
	"stagein/source/walk":     5,
	"stagein/stageintest":     6,
	"stagein/stageout":        6,
	"stagein/fill/cache":      1,
	"stagein/archive":         6,
	"stagein":                 7,
	"stagein/scan":            8, // scan, ingest and fill do not import each other
	"stagein/ingest":          8,
	"stagein/fill":            8,
	"stagein/jobtest":         9,
	"fsclient/wait":           4,
	"fsclient/sources":        1,
	"fsclient/handover":       1,
	"fsclient/pagecache":      1,
	"fsclient/prefetch":       6,
	"fsclient/cache":          5,
	"fsclient/locks":          5,
	"fsclient/writeback":      5,
	"fsclient/stripe":         5,
	"fsclient/route":          6,
	"fsclient":                7,
	"fsclient/clienttest":     7,
	"fsclient/mount":          8,
	"daemon/job":              15,
	"daemon/tasks":            16,
	"daemon/training":         16,
	"daemon/plans":            18,
	"daemon/replicas":         16,
	"daemon/rebuild":          16,
	"daemon/stageout":         17,
	"daemon/partner":          17,
	"daemon/dataset":          17,
	"daemon/ingest":           18,
	"daemon/leader":           18,
	"daemon/member":           19,
	"daemon/node":             15,
	"daemon/node/nodetest":    16,
	"daemon/home":             16,
	"daemon":                  20,
	"deploy/mounts":           6,
	"deploy/show":             21,
	"deploy/simulate":         2,
	"deploy/doctor":           2,
	"deploy/local":            21,
	"deploy/pitch":            21,
	"deploy/docs/site":        1,
	"deploy/bivouac":          22,
	"integration/leaktest":    1,
	"integration/slowpfs":     21,
	"integration/slowpfs/cmd": 22,
	"integration/netcluster":  22,
	"integration/testcluster": 22,
	"integration/bench":       23,
	"integration/firsttime":   23,
	"integration/local":       23,
	"integration/model":       23,
	"integration/posix":       23,
	"integration/simulate":    23,
	"integration/slurm":       23,
	"integration/soak":        23,
	"integration":             23,
}

// rooms lists where a large dependency may be imported.
var rooms = map[string][]string{
	"github.com/hashicorp/raft":       {"metadata/raftstore"},
	"go.etcd.io/bbolt":                {"metadata/raftstore"},
	"github.com/cockroachdb/pebble":   {"metadata/pebblestore", "integration/bench", "fsclient/clienttest"},
	"github.com/hanwen/go-fuse":       {"fsclient/mount", "integration/bench", "integration/slowpfs"},
	"github.com/spf13/cobra":          {"deploy/bivouac"},
	"github.com/yuin/goldmark":        {"deploy/docs/site"},
	"github.com/prometheus":           {"daemon", "integration/bench"},
	"github.com/klauspost/compress":   {"stagein/source/", "stagein/stageintest"},
	module + "/fsclient":              {"fsclient", "fsclient/", "deploy/bivouac", "integration/"},
	module + "/daemon":                {"daemon", "daemon/", "deploy/", "integration/"},
	module + "/metadata/metadatatest": nil, // tests only
	module + "/datapath/datapathtest": nil,
	module + "/fsclient/clienttest":   nil,
	module + "/daemon/node/nodetest":  nil,
	module + "/stagein/stageintest":   {"stagein/jobtest"}, // tests only
	module + "/stagein/jobtest":       nil,
	module + "/integration/leaktest":  nil,
}

// topLevel lists the directories allowed beside the dot-files and documents.
var topLevel = "daemon fsclient metadata datapath stagein spank deploy integration"

type file struct {
	pkg, path string // the package's, relative to the module
	test      bool
	imports   []string
	doc       bool // has a package comment
}

func TestFloors(t *testing.T) {
	documented := make(map[string]bool)
	for _, f := range sources(t) {
		floor, ok := floors[f.pkg]
		if !ok {
			t.Errorf("%s: package %s has no floor: give it one here and a line in ARCHITECTURE.md", f.path, f.pkg)
			continue
		}
		documented[f.pkg] = documented[f.pkg] || f.doc
		for _, imp := range f.imports {
			checkRoom(t, f, imp)
			dep, ours := strings.CutPrefix(imp, module+"/")
			if !ours || f.test {
				continue
			}
			if d, ok := floors[dep]; !ok || d >= floor {
				t.Errorf("%s: %s (floor %d) imports %s (floor %d)", f.path, f.pkg, floor, dep, d)
			}
		}
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
	for pkg := range floors {
		if _, ok := documented[pkg]; !ok {
			t.Errorf("the floor plan has %s, which is not there", pkg)
		}
	}
}

func checkRoom(t *testing.T, f file, imp string) {
	t.Helper()
	for dep, allowed := range rooms {
		if f.test || imp != dep && !strings.HasPrefix(imp, dep+"/") {
			continue
		}
		if !within(f.pkg, allowed) {
			t.Errorf("%s: %s must not import %s", f.path, f.pkg, imp)
		}
	}
}

func within(pkg string, rooms []string) bool {
	for _, r := range rooms {
		if pkg == r || strings.HasSuffix(r, "/") && strings.HasPrefix(pkg, r) {
			return true
		}
	}
	return false
}

func TestTopLevel(t *testing.T) {
	es, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	built := " bin build "
	for _, e := range es {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !strings.Contains(" "+topLevel+built, " "+e.Name()+" ") && e.Name() != "integration" {
			t.Errorf("%s is not a room of the house", e.Name())
		}
	}
}

func sources(t *testing.T) []file {
	t.Helper()
	var files []file
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (e.Name() == "testdata" || strings.HasPrefix(e.Name(), ".") && e.Name() != "..") {
			return filepath.SkipDir
		}
		if e.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		p, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		rel := filepath.Clean(strings.TrimPrefix(path, "../"))
		f := file{pkg: filepath.Dir(rel), path: rel, test: strings.HasSuffix(path, "_test.go"), doc: p.Doc != nil}
		for _, i := range p.Imports {
			s, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, s)
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
